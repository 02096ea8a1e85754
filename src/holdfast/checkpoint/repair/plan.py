"""What is to be done about a damaged run: decided from what is left of it, without touching it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from holdfast.checkpoint.crypto import SHREDDED
from holdfast.core.records import Header, Record, is_encrypted
from holdfast.storage.base import Inspection

__all__ = ["RepairPlan", "Span", "covers", "plan_repair", "spans"]

Span = tuple[int, int]


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of a damaged run stay."""

    run_id: str
    keep: tuple[Record, ...]
    lost: tuple[Span, ...]
    """First and last of the seqs that cannot be read, although no prune took them."""
    stranded: tuple[Span, ...]
    """Those that can be read, but are built on what is lost."""
    problems: tuple[str, ...]
    head: int
    """The newest seq that was known."""
    rewrites: bool
    """Whether the medium holds something else than `keep`, or not as it should."""
    checkpoint: Header | None
    """The newest visible checkpoint of the run itself that can be loaded."""

    @property
    def needed(self) -> bool:
        return bool(self.rewrites or self.lost)

    @property
    def holes(self) -> list[dict[str, int | str]]:
        """What the records that stay pass over, as a prune note tells it."""
        told: list[dict[str, int | str]] = []
        seq = 0
        for header in (record.header for record in self.keep):
            if header.seq > seq + 1:
                told.append({"first": seq + 1, "last": header.seq - 1, "digest": header.prev})
            seq = header.seq
        return told


class _Erased(msgspec.Struct):
    first: int
    last: int


class _Prune(msgspec.Struct):
    erased: list[_Erased]


def plan_repair(inspection: Inspection) -> RepairPlan:
    """Keep what is whole, follows on, and is built on nothing that is lost."""
    whole = _following(inspection.records)
    seqs = [record.header.seq for record in whole]
    pruned = _pruned(whole)
    newest = max([inspection.head, *seqs[-1:]])
    lost = [
        seq
        for first, last in _missing(seqs, newest)
        for seq in range(first, last + 1)
        if not covers(pruned, seq)
    ]
    stranded = _stranded(whole, set(lost))
    keep = tuple(record for record in whole if record.header.seq not in stranded)
    shown = [
        record.header
        for record in keep
        if record.header.frame != "note"
        and not record.header.scope
        and record.header.seq not in inspection.hidden
    ]
    if (lost or stranded) and (not shown or _lacks_its_key(keep)):
        # What is left tells of states that nobody can load: it is put aside as a whole.
        stranded, keep, shown = set(seqs), (), []
    rewrites = bool(inspection.problems) or len(keep) < len(inspection.records)
    if keep and keep[-1].header.seq < newest:
        rewrites = True
    return RepairPlan(
        run_id=inspection.run_id,
        keep=keep,
        lost=tuple(spans(lost)),
        stranded=tuple(spans(sorted(stranded))),
        problems=inspection.problems,
        head=newest,
        rewrites=rewrites,
        checkpoint=shown[-1] if shown else None,
    )


def _following(records: Sequence[Record]) -> list[Record]:
    """The records without any that does not follow the one before it."""
    whole: list[Record] = []
    for record in records:
        header, before = record.header, whole[-1].header if whole else None
        if before is None or header.seq > before.seq + 1 or header.prev == before.digest:
            whole.append(record)
    return whole


def _missing(seqs: Sequence[int], newest: int) -> list[Span]:
    return [(a + 1, b - 1) for a, b in pairwise([0, *seqs, newest + 1]) if b > a + 1]


def _pruned(records: Iterable[Record]) -> list[Span]:
    """The ranges that prune notes tell of."""
    found: list[Span] = []
    for record in records:
        if (record.header.frame, record.header.kind) == ("note", "prune"):
            told = msgspec.json.decode(record.body, type=_Prune)
            found += [(one.first, one.last) for one in told.erased]
    return found


def covers(ranges: Iterable[Span], seq: int) -> bool:
    """Whether *seq* lies in one of the ranges."""
    return any(first <= seq <= last for first, last in ranges)


def _lacks_its_key(records: Sequence[Record]) -> bool:
    """Whether bodies are encrypted and the note that keeps their key is gone, not on purpose."""
    notes = [record.header for record in records if record.header.frame == "note"]
    if any(note.kind == "key" or note.metadata == SHREDDED for note in notes):
        return False
    return any(is_encrypted(record.body) for record in records)


def _stranded(records: Iterable[Record], lost: set[int]) -> set[int]:
    """The checkpoints whose chain of bases leads through what is lost."""
    stranded: set[int] = set()
    for header in (record.header for record in records):
        if header.frame == "delta" and (header.base_seq in lost or header.base_seq in stranded):
            stranded.add(header.seq)
    return stranded


def spans(seqs: Iterable[int]) -> list[Span]:
    """Ascending numbers as first and last of each group of neighbours.

    >>> spans([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    found: list[Span] = []
    for seq in seqs:
        if found and found[-1][1] + 1 == seq:
            found[-1] = found[-1][0], seq
        else:
            found.append((seq, seq))
    return found
