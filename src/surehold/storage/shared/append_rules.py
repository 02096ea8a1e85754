"""The decision whether a batch may be appended: seq, digest, epoch, retry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from surehold.core.records import Record
from surehold.errors import ConflictError, UsageError
from surehold.storage.base import Batch
from surehold.storage.shared.heads import Head, after_append, first_head


def may_be_retry(records: Sequence[Record], head: int) -> bool:
    """True if records at these seqs may be stored already: look them up then."""
    return bool(records) and records[0].header.seq <= head


def is_retry(records: Sequence[Record], stored: Iterable[tuple[int, str]]) -> bool:
    """True if just these records are *stored*, as pairs of seq and digest."""
    return list(stored) == [(record.header.seq, record.header.digest) for record in records]


def decide_append(
    batch: Batch,
    records: Sequence[Record],
    *,
    seq: int,
    digest: str,
    epoch: int | None,
    stored: Iterable[tuple[int, str]] = (),
) -> Literal["store", "stored"] | ConflictError:
    """Decide about a batch of verified *records* that is to follow its run's head.

    *seq* and *digest* are those of the newest record, 0 and "" if there is no run; *epoch* is
    that of the run's newest lease. *stored* are seq and digest of what is there at the seqs of
    the batch, by seq; it is needed only if `may_be_retry`.
    """
    first = records[0].header if records else None
    if first is not None and first.seq <= seq and is_retry(records, stored):
        return "stored"
    if first is not None and not batch.follows(first, seq, digest):
        why = f"seq {first.seq} does not follow its newest, {seq}"
        if first.seq == seq + 1:
            why = f"seq {first.seq} was sealed on another record than {seq}"
    elif batch.epoch is not None and epoch is not None and batch.epoch < epoch:
        why = f"epoch {batch.epoch} was followed by {epoch}"
    else:
        return "store"
    if first is not None and not seq:
        return ConflictError(
            f"run {batch.run_id!r} is no longer in the storage: it ends before record {first.seq}",
            hint="it was deleted, or its directory moved away; the records before are elsewhere",
            run_id=batch.run_id,
            seq=first.seq,
            head=0,
        )
    return ConflictError(
        f"run {batch.run_id!r}: {why}",
        run_id=batch.run_id,
        seq=first.seq if first else seq + 1,
        head=seq,
    )


class AppendPlace(NamedTuple):
    """The place that a batch takes in its run, for a medium that decides by itself."""

    seq: int
    digest: str | None
    """None if the record there was erased: its digest is not known, and what follows believed."""
    gaps: list[tuple[int, int]]
    added: Head | None
    """What the records add to the head; None for a batch without any."""


def following(batch: Batch, records: Sequence[Record]) -> AppendPlace:
    """The seq and digest that *records* follow, and what they bring."""
    if not records:
        return AppendPlace(0, "", [], None)
    first = records[0].header
    seq, digest = first.seq - 1, first.prev
    added = after_append(first_head(first, 0), records)
    erased = next((one for one, last in batch.erased if last == seq), None)
    if erased is None:
        return AppendPlace(seq, digest, batch.gaps(seq), added)
    return AppendPlace(erased - 1, None, batch.gaps(erased - 1), added)


def cannot_erase(run_id: str, seq: int) -> UsageError:
    """The refusal to erase the newest record of a run."""
    return UsageError(
        f"record {seq} is the newest of run {run_id!r} and cannot be erased",
        hint="hide it, or delete the whole run",
        run_id=run_id,
        seq=seq,
    )
