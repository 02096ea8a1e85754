"""Repair: read what is whole of a run, rewrite it, and rebuild the index of runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from surehold.core.records import Record, gaps_between, medium_name, ranges_of
from surehold.errors import CorruptError, UsageError
from surehold.storage.base import Inspection, in_batches
from surehold.storage.objects.bucket import Bucket
from surehold.storage.objects.log_view import LogView, entry_key, now, pos_of, seqs_in
from surehold.storage.objects.packs import Packs
from surehold.storage.objects.run_log import LogChange, RunLogs
from surehold.storage.objects.run_names import NamedRun, RunNames
from surehold.storage.objects.segments import (
    DecodedObject,
    LogEntry,
    LogRow,
    PackRef,
    decode_all,
    record_of,
    row_of,
)
from surehold.storage.shared import check_head, checked_run, moment, rebuilt_head

_FIRST_SAVE = 600 * 10**9
"""Nanoseconds within which the first record of a run follows its entry in the index."""


class _Salvage:
    """The readable part of a run, from the newest base on."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.records: dict[int, Record] = {}
        self.rows: dict[int, LogRow] = {}
        self.hidden: set[int] = set()
        self.problems: list[str] = []
        self.keys: list[str] = []
        """The objects that hold the run; those before the base of its log hold it no more."""
        self.newest: LogEntry | None = None
        """The newest entry that can be read."""
        self.packs: list[PackRef] = []
        """Packs that are named by an entry whose other facts cannot be believed."""
        self.pos = 0
        """The newest position, whatever is there."""
        self.top = 0
        """The newest seq that is known of."""

    def take(self, segment: DecodedObject, where: str) -> None:
        for row in segment.entry.rows:
            self.top = max(self.top, row.seq)
            try:
                self.records[row.seq] = record_of(self.run_id, row, segment.bodies.get(row.seq))
                self.rows[row.seq] = row
            except CorruptError as error:
                # Also if another object has it whole: readers may take it from this one.
                self.problems.append(f"{where}: {error.message}")


def inspect_run(bucket: Bucket, run_id: str) -> tuple[Inspection | None, _Salvage]:
    """Read all that is whole of a run; None if there is no such run."""
    found = _Salvage(run_id)
    name = medium_name(run_id)
    listed = [pos_of(one.key) for one in bucket.each(f"log/{name}")]
    entries: list[tuple[int, DecodedObject]] = []
    base = 0
    for pos in listed:
        segment = _segment(bucket, found, entry_key(name, pos))
        found.pos = max(found.pos, pos)
        if segment is None:
            continue
        entries.append((pos, segment))
        if found.newest is None:
            found.newest, base = segment.entry, segment.entry.base
        if pos <= base:
            break
    if found.newest is None or found.newest.head is None:
        return None, found
    last = entries[-1]
    if base and last[0] != base:
        found.problems.append(f"{entry_key(name, base)}: the base of the log cannot be read")
    held = {pos for pos, _ in entries}
    lost = [pos for pos in range(max(base, 1), found.pos) if pos not in held and pos not in listed]
    found.problems += [f"{entry_key(name, pos)}: the object is missing" for pos in lost]
    erased: set[int] = set()
    named = [pack for _, segment in reversed(entries) for pack in segment.entry.packs]
    for pack in dict.fromkeys([*found.packs, *named]):
        part = _segment(bucket, found, pack.key)
        if pack in named:
            found.top = max(found.top, pack.last)
        if part is not None:
            found.take(part, pack.key)
    for pos, segment in reversed(entries):
        found.take(segment, entry_key(name, pos))
        found.hidden |= seqs_in(segment.entry.hidden)
        erased |= seqs_in(segment.entry.erased)
    for seq in erased & found.records.keys():
        del found.records[seq]
    head = max(found.newest.head.seq, found.top)
    missing = set(range(1, head + 1)) - erased - found.records.keys()
    if missing and not found.problems:
        found.problems.append(f"records {ranges_of(sorted(missing))} are missing")
    return (
        Inspection(
            run_id=run_id,
            records=tuple(found.records[seq] for seq in sorted(found.records)),
            hidden=frozenset(found.hidden & found.records.keys()),
            problems=tuple(f"run {run_id!r}: {problem}" for problem in found.problems),
            head=head,
        ),
        found,
    )


def lost_runs(bucket: Bucket, logs: RunLogs, index: RunNames) -> list[str]:
    """The names of runs that are in the index and have no log any more.

    One without a lease may be about to begin, so it counts only after a while.
    """
    places = logs.all_places()
    young = time.time_ns() - _FIRST_SAVE
    left = [one for one in index.all() if one.name not in places]
    return [
        one.name
        for one in left
        if one.ordinal < young or bucket.look(f"leases/{one.name}") is not None
    ]


def _segment(bucket: Bucket, found: _Salvage, key: str) -> DecodedObject | None:
    data = bucket.get(key)
    if data:
        found.keys.append(key)
    else:
        found.problems.append(f"{key}: the object is {'empty' if data is not None else 'missing'}")
        return None
    try:
        return decode_all(data)
    except CorruptError as error:
        found.problems.append(f"{key}: {error.message}")
    try:
        part = decode_all(data, lenient=True)
    except CorruptError:
        return None
    found.take(part, key)
    found.packs += part.entry.packs
    return None


def rewrite_run(
    bucket: Bucket,
    logs: RunLogs,
    packs: Packs,
    run_id: str,
    records: Sequence[Record],
    hidden: Collection[int],
    head: int,
) -> tuple[str, int]:
    """Make the run just these records; return the place of the rest, and its ordinal."""
    opened = checked_run(run_id, records)
    inspection, found = inspect_run(bucket, run_id)
    if inspection is None or found.newest is None or found.newest.head is None:
        raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
    check_head(run_id, head, inspection.head)
    before = found.newest.head
    name = medium_name(run_id)
    aside = f"aside/{name}/{moment()}"
    bucket.together(lambda key: bucket.copy(key, f"{aside}/{key}"), found.keys)
    view = LogView(name, run_id)
    view.pos, view.at, view.epoch = found.pos, found.newest.at, found.newest.epoch
    view.confirmed, view.head = now(), before
    rows = _rows(found, opened)
    stored = _stored(packs, view, opened, rows)
    new = rebuilt_head(before, opened, hidden) if opened else None
    newest = None if new is None or new.latest is None else rows[new.latest]
    change = LogChange(
        head=new,
        newest=newest,
        resets=True,
        packs=stored,
        hides=ranges_of(sorted({*hidden} & {record.header.seq for record in opened})),
        erased=gaps_between(record.header.seq for record in opened),
    )
    if not logs.commit(view, change):
        bucket.delete(pack.key for pack in stored)
        check_head(run_id, head, -1)
    bucket.delete(
        one.key
        for one in list(bucket.each(f"data/{name}"))
        if one.key not in {pack.key for pack in stored}
    )
    packs.drop_log(view)
    return f"{bucket.where}/{aside}", before.ordinal


def _rows(found: _Salvage, records: Iterable[Record]) -> dict[int, LogRow]:
    """The rows of the records of a rewritten run, in the order of their commits."""
    rows: dict[int, LogRow] = {}
    at = 0
    for record in records:
        header = record.header
        known = found.rows.get(header.seq)
        if known is not None and known.digest.hex() == header.digest and known.at >= at:
            rows[header.seq] = known
        else:
            rows[header.seq] = row_of(record, found.pos + 1, at)
        at = rows[header.seq].at
    return rows


def _stored(
    packs: Packs, view: LogView, records: Sequence[Record], rows: dict[int, LogRow]
) -> list[PackRef]:
    """Packs that hold these records."""
    stored = []
    for part in in_batches(records):
        bodies = {record.header.seq: record.body for record in part}
        pack = packs.store(view, [rows[seq] for seq in bodies], bodies, 1)
        assert pack is not None
        stored.append(pack)
    return stored


def check_index(logs: RunLogs, index: RunNames, *, repair: bool) -> list[str]:
    """Compare the index of runs with their logs, and with *repair* make it fit."""
    places = logs.all_places()
    tips = logs.tips(list(places))
    indexed = set(index.all())
    there = {
        NamedRun(tip.info.ordinal, name): tip.run_id
        for name, tip in tips.items()
        if tip is not None and tip.info is not None
    }
    problems = []
    for one in there.keys() - indexed:
        problems.append(f"run {there[one]!r} is missing in the index of runs")
        if repair:
            index.add(one.ordinal, one.name)
            problems[-1] += "; it was added"
    for name in (name for name, tip in tips.items() if tip is None):
        last = logs.last_whole(name)
        if last is None or last.info is None:
            problems.append(f"no object of log/{name} can be read")
        elif repair and NamedRun(last.info.ordinal, name) not in indexed:
            index.add(last.info.ordinal, name)
    for one, told in index.all_resting():
        tip = tips.get(one.name)
        if tip is None or tip.info != told.info:
            problems.append(f"run {told.run_id!r} has changed since it was put into the index")
            if repair:
                index.stir(one.ordinal, one.name)
                problems[-1] += "; that was removed"
    return problems
