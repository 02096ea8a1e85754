"""Damage in files of `FilesystemStorage`: rewrite what is whole, keep the rest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import msgspec

from surehold.core.records import Record, gaps_between
from surehold.errors import CorruptError
from surehold.storage.base import Inspection
from surehold.storage.files.lines import CommitLine, pack
from surehold.storage.files.names import file_name, folder_of
from surehold.storage.files.reader import JournalFiles, stat_of
from surehold.storage.files.run_index import JournalIndex, Segment
from surehold.storage.io import Folder
from surehold.storage.shared import moment

_QUARANTINE = ".quarantine"


def inspect_run(files: JournalFiles, root: Folder, journal: JournalIndex) -> Inspection:
    """Read all that is whole of a run that is held."""
    problems = [journal.corrupt(damage).message for damage in journal.damages]
    records: list[Record] = []
    entries = [journal.entries[seq] for seq in journal.seqs]
    while entries:
        try:
            whole = files.records(root, entries)
        except CorruptError as error:
            problems.append(error.message)
            whole, entries = [], entries[1:]
        records += whole
        entries = entries[len(whole) :]
    return Inspection(
        run_id=journal.run_id,
        records=tuple(records),
        hidden=frozenset(seq for seq, entry in journal.entries.items() if entry.hidden),
        problems=tuple(problems),
        # How much a line held that cannot be read is not known; one record at least.
        head=journal.seq + journal.broken,
    )


def cut_torn(files: JournalFiles, root: Folder, journal: JournalIndex) -> str:
    """Cut off an unacknowledged write of a held run; return what was cut."""
    segment = journal.segments[-1]
    size = segment.stat[1] - segment.end
    files.to_write(root, journal.medium)
    return f"cut the torn tail, {size} bytes, of {segment.folder}/{segment.file}"


def rebuild(
    files: JournalFiles,
    root: Folder,
    journal: JournalIndex,
    records: Sequence[Record],
    hidden: Collection[int],
) -> str:
    """Write a run that is held anew; gives where its old files are kept.

    They are linked there first, then the new ones put in their place: a crash leaves files that
    are damaged still, or again, and can be repaired again.
    """
    kept = _set_aside(root, journal)
    if not records:
        files.remove(root, journal.medium)
        return kept
    new = JournalIndex(journal.medium, journal.ordinal)
    old = {(segment.folder, segment.file) for segment in journal.segments}
    for number, (folder, lines) in enumerate(_segments(new, journal, records, hidden), 1):
        name = file_name(journal.ordinal, journal.medium, number, files.codec)
        segment = Segment(folder, name, files.codec)
        new.segments.append(segment)
        data = []
        for line in lines:
            data.append(pack(line, files.codec))
            new.read(segment, data[-1], (0, 0, 0))
        with root.folder(folder, create=True) as opened:
            opened.put(name, b"".join(data))
            with opened.open(name) as fd:
                segment.stat = stat_of(fd)
        old.discard((folder, name))
    for folder, name in sorted(old):
        with root.folder(folder) as opened:
            opened.drop(name)
            opened.sync()
    files.forget(journal.medium)
    files.acknowledge(root, new)
    return kept


def _set_aside(root: Folder, journal: JournalIndex) -> str:
    place = f"{journal.medium}-{moment()}"
    with root.folder(_QUARANTINE, create=True) as all_, all_.folder(place, create=True) as kept:
        for segment in journal.segments:
            with root.folder(segment.folder) as folder:
                folder.link(segment.file, kept)
        kept.sync()
    return os.path.join(_QUARANTINE, place)


def _segments(
    new: JournalIndex, old: JournalIndex, records: Sequence[Record], hidden: Collection[int]
) -> Iterator[tuple[str, Iterator[CommitLine]]]:
    """The directory and lines of each file; a line is consumed before the next."""
    groups = [
        (folder, list(group))
        for folder, group in groupby(records, key=lambda r: folder_of(r.header.name))
    ]
    gaps = {last: (first, last) for first, last in gaps_between(r.header.seq for r in records)}
    for number, (folder, group) in enumerate(groups, 1):
        yield folder, _lines(new, old, group, hidden, gaps, moves=number < len(groups))


def _lines(
    new: JournalIndex,
    old: JournalIndex,
    records: Sequence[Record],
    hidden: Collection[int],
    gaps: dict[int, tuple[int, int]],
    *,
    moves: bool,
) -> Iterator[CommitLine]:
    def commit_of(record: Record) -> int:
        entry = old.entries.get(record.header.seq)
        return entry.commit if entry is not None else 0

    for commit, group in groupby(records, key=commit_of):
        its = list(group)
        seqs = [record.header.seq for record in its]
        erased = [gaps[seq - 1] for seq in seqs if seq - 1 in gaps]
        hide = [seq for seq in seqs if seq in hidden]
        begins = new.commit == 0
        line = new.next_line(its, hide, commit=commit, erased=erased)
        if begins:
            # It is the first of the run's first file, although that is there already.
            fields = msgspec.structs.replace(
                line.fields, began=old.ordinal, started=old.started or its[0].header.saved_at
            )
            line = CommitLine(fields, line.parts)
        yield line
    if moves:
        yield new.next_line((), (), commit=0, moved=True)
