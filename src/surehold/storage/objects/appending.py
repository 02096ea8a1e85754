"""Decisions about changes of a run: records to append, to hide and to erase."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from surehold.core.records import Header, Range, Record, ranges_of
from surehold.errors import ConflictError, CorruptError
from surehold.storage.base import Batch
from surehold.storage.objects.log_view import LogView
from surehold.storage.objects.packs import Packs
from surehold.storage.objects.run_log import LogChange
from surehold.storage.objects.segments import LogRow, header_of, row_of
from surehold.storage.shared import (
    Head,
    after_append,
    after_removal,
    cannot_erase,
    decide_append,
    first_head,
    may_be_retry,
)

Numbered = tuple[int, Batch, list[Record]]
"""A batch with its place in the call and its verified records."""


class Append:
    """The batches of one run in a call, stored together as far as they are taken."""

    def __init__(self, run_id: str, parts: Sequence[Numbered]) -> None:
        self.run_id = run_id
        self.ordinal = 0
        """That of the run, should it begin."""
        self.ends = False
        """True if the newest checkpoint, stored now, says that the run is not running."""
        self.results: list[tuple[int, ConflictError | None]] = []
        self._parts = parts

    @property
    def may_begin(self) -> bool:
        """True if the run begins with these batches, unless it is there already."""
        return any(
            records and (records[0].header.seq == 1 or batch.follows(records[0].header, 0, ""))
            for _, batch, records in self._parts
        )

    def refused(self, error: CorruptError) -> list[tuple[int, ConflictError | None]]:
        """The results if the run is damaged, so that its newest record is not known."""
        return [
            (
                number,
                ConflictError(
                    f"run {self.run_id!r}: its newest record is not known: {error.message}",
                    hint=error.hint,
                    run_id=self.run_id,
                    seq=records[0].header.seq if records else 0,
                    head=0,
                ),
            )
            for number, _, records in self._parts
        ]

    def decide(self, packs: Packs, view: LogView, fresh: bool) -> LogChange | None:
        """Decide about each batch, and make one change of those that are taken.

        None if there is nothing to write; also if one is refused by a view that may be old.
        """
        self.results, self.ends = [], False
        taken: list[Record] = []
        hide: set[int] = set()
        gaps: list[Range] = []
        seq, digest = (view.head.seq, view.head.digest) if view.head else (0, "")
        for number, batch, records in self._parts:
            decision = decide_append(
                batch,
                records,
                seq=seq,
                digest=digest,
                epoch=view.epoch,
                stored=_stored(packs, view, taken, records) if may_be_retry(records, seq) else (),
            )
            refused = decision if isinstance(decision, ConflictError) else None
            self.results.append((number, refused))
            if decision == "store":
                gaps += batch.gaps(seq)
                taken += records
                hide.update(batch.hide)
                if records:
                    seq, digest = records[-1].header.seq, records[-1].header.digest
        refusals = any(refused for _, refused in self.results)
        if (view.head is None and not taken) or (refusals and not fresh):
            return None
        head = view.head or first_head(taken[0].header, self.ordinal)
        change = _changed(packs, view, head, taken, hide, gaps)
        after = change and change.head
        self.ends = bool(after and after.status != "running" and after.latest != head.latest)
        return change


def drop_records(
    packs: Packs, view: LogView, hide: Collection[int], erase: Collection[int], gone: list[LogRow]
) -> tuple[LogChange | None, int]:
    """The change that hides and erases records, and how many it affects.

    *gone* gets the rows that it erases.
    """
    gone.clear()
    if view.head is None or not (hide or erase):
        return None, 0
    wanted = {*hide, *erase}
    rows = packs.rows_at(view, wanted)
    if view.head.seq in erase and view.head.seq in rows:
        raise cannot_erase(view.run_id, view.head.seq)
    gone += [row for seq, row in rows.items() if seq in erase]
    hidden = [row for seq, row in rows.items() if seq in hide and seq not in view.hidden]
    if not gone and not hidden:
        return None, 0
    shown = [*hidden, *(row for row in gone if row.seq not in view.hidden)]
    return _removed(packs, view, view.head, [], hidden, gone, shown), len(hidden) + len(gone)


def _changed(
    packs: Packs,
    view: LogView,
    head: Head,
    taken: Sequence[Record],
    hide: Collection[int],
    gaps: Sequence[Range],
) -> LogChange | None:
    own = {record.header.seq: row_of(record, 0, 0) for record in taken}
    if taken:
        head = after_append(head, taken)
    earlier = packs.rows_at(view, {seq for seq in hide if seq not in own})
    hidden = [row for seq, row in own.items() if seq in hide]
    hidden += [row for seq, row in earlier.items() if seq not in view.hidden]
    if not taken and not hidden:
        return None
    return _removed(packs, view, head, taken, hidden, [], hidden, gaps)


def _removed(
    packs: Packs,
    view: LogView,
    head: Head,
    taken: Sequence[Record],
    hidden: Sequence[LogRow],
    gone: Sequence[LogRow],
    shown: Sequence[LogRow],
    gaps: Sequence[Range] = (),
) -> LogChange:
    """The change that appends, hides and erases; *shown* of the last two was visible."""
    away = {row.seq for row in (*hidden, *gone)}

    def look() -> tuple[Header | None, Header]:
        newest = _newest(packs, view, taken, away)
        last = taken[-1].header if taken else _at(packs, view, head.seq)
        return None if newest is None else header_of(view.run_id, newest), last

    after = after_removal(
        head,
        {row.seq for row in shown},
        look,
        checkpoints=sum(not row.note for row in shown),
        stored=sum(row.size for row in gone),
    )
    newest = view.newest
    if after.latest is None:
        newest = None
    elif newest is None or newest.seq != after.latest:
        newest = _newest(packs, view, taken, away)
    return LogChange(
        head=after,
        newest=newest,
        records=taken,
        hidden=[row.seq for row in hidden],
        erased=[*gaps, *ranges_of(sorted(row.seq for row in gone))],
    )


def _newest(
    packs: Packs, view: LogView, taken: Sequence[Record], away: Collection[int]
) -> LogRow | None:
    """The newest checkpoint of the run itself that is visible once *away* is not."""
    for record in reversed(taken):
        header = record.header
        if header.frame != "note" and not header.scope and header.seq not in away:
            return row_of(record, 0, 0)
    end = view.head.seq + 1 if view.head else 0
    for row in packs.rows_down(view, end):
        shown = not row.note and row.seq not in view.hidden and row.seq not in away
        if shown and not header_of(view.run_id, row).scope:
            return row
    return None


def _at(packs: Packs, view: LogView, seq: int) -> Header:
    return header_of(view.run_id, packs.rows_at(view, {seq})[seq])


def _stored(
    packs: Packs, view: LogView, taken: Sequence[Record], records: Sequence[Record]
) -> list[tuple[int, str]]:
    """Seq and digest of what is there at the seqs of *records*."""
    seqs = [record.header.seq for record in records]
    there = {record.header.seq: record.header.digest for record in taken}
    rows = packs.rows_at(view, {seq for seq in seqs if seq not in there})
    there |= {seq: row.digest.hex() for seq, row in rows.items()}
    return [(seq, there[seq]) for seq in seqs if seq in there]
