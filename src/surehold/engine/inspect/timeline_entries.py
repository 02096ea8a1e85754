"""A run as it happened: checkpoints with their changes, and notes between them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.core.records import Header, Record
from surehold.core.values import decode
from surehold.engine.inspect.changes import Change, changes_in
from surehold.engine.journal import Reader, read_body
from surehold.engine.retention import Marks, RetentionManager
from surehold.engine.runs import Answer, Effect, Question, Timer
from surehold.engine.runs.effects import failure_in
from surehold.errors import CorruptError, SureholdError
from surehold.storage.base import RecordQuery, RunInfo


class NoteView(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a journal, opened."""

    seq: int
    kind: str
    scope: str
    step: int
    node: str | None
    id: str = ""
    name: str = ""
    state: str = ""
    """Of an effect ``done``, ``failed``, ``in doubt`` or ``repeat``, of a timer ``over``."""
    value: Any = None
    """An effect's outcome, a question, an answer, or the time that a timer ends at."""
    error: str = ""
    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    facts: dict[str, Any] = {}
    """Metadata of the note's header."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, what it changed, and the notes since the checkpoint before it."""

    header: Header
    pinned: bool
    changes: tuple[Change, ...]
    notes: tuple[NoteView, ...]
    error: str = ""
    """The error its run failed with."""
    failed_in: str = ""
    """The node that its run failed in."""
    damaged: bool = False
    """True if only its header can be read; `error` says why."""


def timeline(
    reader: Reader,
    retention: RetentionManager,
    run: RunInfo,
    *,
    limit: int | None = None,
    scope: str = "",
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """The newest *limit* checkpoints of a run's scope, and the notes after them.

    Newest first.
    """
    more = None if limit is None else limit + 1
    query = RecordQuery(run_id=run.run_id, scope=scope, limit=more)
    headers = reader.readable_headers(run, query)
    first = headers[limit].seq + 1 if limit is not None and len(headers) > limit else 1
    moments, notes = entries_from(reader, retention, run, first, headers[:limit])
    return moments[::-1], notes


def entries_from(
    reader: Reader, retention: RetentionManager, run: RunInfo, first: int, headers: Iterable[Header]
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """These checkpoints, oldest first, with their notes, and the notes after them.

    Notes from the record *first* on count.
    """
    shown = {header.seq: header for header in headers}
    scopes = {header.scope for header in shown.values()}
    marks = retention.readable_marks(run)
    moments: list[TimelineEntry] = []
    notes: list[NoteView] = []
    for record in reader.readable(run.run_id, first, run.seq):
        if isinstance(record, CorruptError):
            header = shown.get(record.facts.get("seq", 0))
            if header is not None:
                moments.append(damaged_entry(marks.tagged(header), record, tuple(notes)))
                notes = []
            else:
                notes.append(_damaged_note(record))
            continue
        header = record.header
        if header.frame == "note":
            notes.append(view_note(reader, record))
        elif header.seq in shown:
            moments.append(_entry(reader, marks, shown[header.seq], record, tuple(notes)))
            notes = []
        elif header.scope in scopes:  # a checkpoint that was dropped, and its step with it
            notes = []
    return moments, tuple(notes)


def _entry(
    reader: Reader, marks: Marks, header: Header, record: Record, notes: tuple[NoteView, ...]
) -> TimelineEntry:
    tagged = marks.tagged(header)
    try:
        error, failed_in = failure_of(reader, record)
        changes = changes_in(reader, record)
    except CorruptError as damage:  # of the note that keeps its key
        return damaged_entry(tagged, damage, notes)
    return TimelineEntry(
        header=tagged,
        pinned=header.seq in marks.pinned,
        changes=changes,
        notes=notes,
        error=error,
        failed_in=failed_in,
    )


def _damaged_note(error: CorruptError) -> NoteView:
    seq = error.facts.get("seq", 0)
    return NoteView(seq=seq, kind="damaged", scope="", step=0, node=None, error=error.message)


def damaged_entry(
    header: Header, error: CorruptError, notes: tuple[NoteView, ...] = ()
) -> TimelineEntry:
    """The entry of a record of which only the header can be read."""
    told = f"damaged: {error.message}"
    return TimelineEntry(
        header=header, pinned=False, changes=(), notes=notes, error=told, damaged=True
    )


def failure_of(reader: Reader, record: Record) -> tuple[str, str]:
    """Return the error a run failed with at a checkpoint, and the node."""
    header = record.header
    if header.status in ("running", "completed"):
        return "", ""
    extra = bytes(read_body(reader.sealer.open(record), header).extra)
    return failure_in(header, extra), failed_node(header, extra)


def failed_node(header: Header, extra: bytes) -> str:
    """The node that a graph failed in; empty if there is none.

    It is the node to execute next, which the failed checkpoint keeps beside the state.
    """
    if header.status != "failed" or not extra:
        return ""
    told: Any = msgspec.json.decode(extra)
    now = told.get("now") if isinstance(told, dict) else None
    node = now.get("next") if isinstance(now, dict) else None
    return node if isinstance(node, str) else ""


_OPENED = {"effect": Effect, "question": Question, "answer": Answer, "timer": Timer}


def view_note(reader: Reader, record: Record) -> NoteView:
    """Return a note's content; of one that cannot be opened, only its header."""
    header = record.header
    common: dict[str, Any] = {
        "seq": header.seq,
        "kind": header.kind,
        "scope": header.scope,
        "step": header.step,
        "node": header.node,
        "facts": dict(header.metadata),
    }
    kind = _OPENED.get(header.kind)
    if kind is None:
        return NoteView(**common)
    try:
        content: Any = msgspec.json.decode(reader.sealer.open(record), type=kind)
    except (SureholdError, msgspec.MsgspecError) as error:
        return NoteView(error=str(error), **common)
    if isinstance(content, Effect):
        return NoteView(**common, **_effect(content))
    if isinstance(content, Timer):
        until = None if content.until is None else datetime.fromtimestamp(content.until, UTC)
        state = "over" if content.expired else ""
        return NoteView(id=content.id, name=content.name, state=state, value=until, **common)
    text = content.text if isinstance(content, Question) else content.value
    return NoteView(id=content.id, value=decode(bytes(text)), **common)


def _effect(effect: Effect) -> dict[str, Any]:
    state = "done" if effect.done else "repeat" if effect.repeat else "in doubt"
    return {
        "id": effect.id,
        "name": effect.name,
        "state": "failed" if effect.error else state,
        "value": decode(bytes(effect.value)) if bytes(effect.value) else None,
        "error": ": ".join(effect.error) if effect.error else "",
        "seconds": effect.seconds,
        "tokens": effect.tokens,
        "dollars": effect.dollars,
    }
