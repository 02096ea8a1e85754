"""Copies of one run in several storages: comparing them, bringing one up to date."""

from __future__ import annotations

from itertools import takewhile

import msgspec

from surehold.core.records import Record, chained, gaps_between
from surehold.errors import ConflictError, UsageError
from surehold.storage.base import (
    Batch,
    RecordQuery,
    Repairable,
    Storage,
    in_batches,
)


def visible(storage: Storage, run_id: str, first: int = 1) -> set[int]:
    """The seqs of a run that are listed, from *first* on."""
    headers = storage.headers(RecordQuery(run_id=run_id, notes=True))
    return {header.seq for header in takewhile(lambda header: header.seq >= first, headers)}


def lacks(batch: Batch, refused: ConflictError | None) -> bool:
    """True if a storage refused a batch because it lacks the records before it."""
    head = None if refused is None else refused.facts.get("head")
    return head is not None and bool(batch.records) and head < batch.records[0].header.seq - 1


def bring_up(
    source: Storage, target: Storage, run_id: str, after: int
) -> tuple[int, ConflictError | None]:
    """Append to *target* what *source* has after that seq; the count, or why not."""
    copied = 0
    for records in in_batches(source.read(run_id, first=after + 1)):
        seqs = [record.header.seq for record in records]
        gaps = gaps_between(seqs, after=after)
        # Asked after they were read: what is appended meanwhile must not look hidden.
        shown = visible(source, run_id, seqs[0])
        batch = Batch(
            run_id=run_id,
            records=tuple(records),
            # Under a later lease than theirs, someone else has the run: they are not let in.
            epoch=max(record.header.epoch for record in records) or None,
            hide=tuple(seq for seq in seqs if seq not in shown),
            erased=frozenset(gaps),
        )
        conflict = target.append([batch])[0]
        if conflict is not None:
            return copied, conflict
        copied += len(records)
        after = seqs[-1]
    return copied, None


def hide_alike(one: Storage, two: Storage, run_id: str, upto: int) -> None:
    """Hide in each what the other hides, of the records that both have had."""
    ones, twos = (visible(storage, run_id) for storage in (one, two))
    for storage, shown, other in ((one, ones, twos), (two, twos, ones)):
        hide = [seq for seq in sorted(shown - other) if seq <= upto]
        if hide:
            storage.delete(run_id, hide=hide)


class Whole(msgspec.Struct, frozen=True):
    """All records of a run, and in which place they are to be put."""

    records: list[Record]
    hidden: set[int]
    head: int
    """Run that the copies replace."""

    def put(self, storage: Storage, run_id: str) -> str:
        """Make the run in *storage* what this is; says where what else it held is kept."""
        return repairable(storage).rewrite(run_id, self.records, self.hidden, head=self.head)


def repairable(storage: Storage) -> Repairable:
    """*storage* as one that can be repaired."""
    if isinstance(storage, Repairable):
        return storage
    raise UsageError(
        f"a {type(storage).__name__} cannot put a run aside",
        hint="export the run from it and delete it there",
    )


def merged(damaged: Storage, good: Storage, run_id: str) -> Whole | None:
    """A damaged run made whole from a good copy.

    None if the good copy does not reach as far, or is of another history.
    """
    if not isinstance(damaged, Repairable):
        return None
    inspection = damaged.inspect(run_id)
    if inspection is None or not inspection.problems:
        return None
    whole = {record.header.seq: record for record in good.read(run_id)}
    hidden = whole.keys() - visible(good, run_id)
    newest = max(whole, default=0)
    for record in inspection.records:
        there = whole.get(record.header.seq)
        if there is not None and there.header.digest != record.header.digest:
            return None
        if record.header.seq > newest:
            whole[record.header.seq] = record
    if inspection.head > max(whole, default=0):
        return None
    records = [whole[seq] for seq in sorted(whole)]
    if len(chained(records)) < len(records):
        return None
    later = [record.header.seq for record in records if record.header.seq > newest]
    if later and later != list(range(newest + 1, later[-1] + 1)):
        return None
    return Whole(records, set(hidden) | (inspection.hidden & whole.keys()), inspection.head)
