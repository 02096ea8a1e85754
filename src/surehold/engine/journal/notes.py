"""Open notes of a checkpoint, read along the branch that continues from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from surehold.core.records import NOTE_KINDS, OPEN_FROM, Header, Record
from surehold.engine.crypto import Sealer
from surehold.engine.journal.reader import Reader
from surehold.engine.journal.requests import Note

_DECODE = {name: msgspec.json.Decoder(kind).decode for name, kind in NOTE_KINDS.items()}
BRANCH = "branch"
"""The kind of the notes that mark the continuation of a run from an earlier record."""


def branch_note(after: int, until: int) -> Note:
    """The note of a run that continues from *after*, abandoning up to *until*.

    It is written with the checkpoint that the new branch begins with.
    """
    return Note(kind=BRANCH, content={}, metadata={"after": after, "until": until})


def spans_to(branches: Sequence[Header], head: int) -> list[range]:
    """The seqs that lead to record *head*, newest first.

    *branches* are notes, oldest first.
    """
    spans = []
    for note in reversed(branches):
        after, until = note.metadata["after"], note.metadata["until"]
        if until < head:
            spans.append(range(until + 1, head + 1))
            head = after
    return [*spans, range(head + 1)]


class OpenNotes(NamedTuple):
    """The notes of a checkpoint's open step, along the branch that continues from it."""

    notes: list[Note]
    branch: int
    """The record after which the newest branch began; 0 if there is none."""
    end: int
    """The last record of the branch: the run's newest, unless it was abandoned meanwhile."""
    others: list[Note]
    """The notes of other branches."""


def read_line(reader: Reader, after: Header, head: int) -> OpenNotes:
    """Read the open notes of a checkpoint up to *head*, the run's newest record."""
    first = after.metadata.get(OPEN_FROM, after.seq)
    return line_in(reader.sealer, reader.records(after.run_id, first + 1, head), after, head)


def line_in(sealer: Sealer, records: Iterable[Record], after: Header, head: int) -> OpenNotes:
    """The open notes of a checkpoint among *records*, which end with seq *head*."""
    found, branches = _notes_in(sealer, records)
    if not branches:
        return OpenNotes([note for _, note in found], 0, head, [])
    for end in (head, *(note.metadata["until"] for note in reversed(branches))):
        spans = spans_to(branches, end)
        if any(after.seq in span for span in spans):
            break
    notes: list[Note] = []
    others: list[Note] = []
    for seq, note in found:
        (notes if any(seq in span for span in spans) else others).append(note)
    began = [span.start - 1 for span in spans if span.start > after.seq]
    return OpenNotes(notes, max(began, default=0), end, others)


def read_notes(reader: Reader, after: Header, head: int) -> list[Note]:
    """Read the open notes of a checkpoint up to the record with seq *head*."""
    return read_line(reader, after, head).notes


def read_since(reader: Reader, run_id: str, after: int, head: int) -> list[Note]:
    """Read the notes after the record with seq *after*, up to *head*."""
    return notes_in(reader.sealer, reader.records(run_id, after + 1, head))


def numbered_since(reader: Reader, run_id: str, after: int, head: int) -> list[tuple[int, Note]]:
    """`read_since`, with the seq of each note."""
    return _notes_in(reader.sealer, reader.records(run_id, after + 1, head))[0]


def notes_in(sealer: Sealer, records: Iterable[Record]) -> list[Note]:
    """The notes of a ledger among *records*."""
    return [note for _, note in _notes_in(sealer, records)[0]]


def _notes_in(
    sealer: Sealer, records: Iterable[Record]
) -> tuple[list[tuple[int, Note]], list[Header]]:
    """The notes of a ledger among *records*, with their seqs, and its branches."""
    found: list[tuple[int, Note]] = []
    branches: list[Header] = []
    for record in records:
        header = record.header
        if header.frame != "note":
            continue
        if header.kind == BRANCH:
            branches.append(header)
        elif header.kind in NOTE_KINDS:
            content = _DECODE[header.kind](sealer.open(record))
            if header.kind == "message":
                content.seq = header.seq
            note = Note(
                kind=header.kind,
                content=content,
                scope=header.scope,
                step=header.step,
                node=header.node,
                parent=header.parent,
                tags=header.tags,
            )
            found.append((header.seq, note))
    return found, branches
