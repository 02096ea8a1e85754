"""Decides how to repair a damaged run, from the records that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from surehold.core.records import (
    Chain,
    Gap,
    Header,
    Range,
    Record,
    chained,
    covers,
    gaps_between,
    is_encrypted,
    ranges_of,
    read_prune_note,
    subtract_ranges,
)
from surehold.engine.crypto import SHREDDED
from surehold.storage.base import Inspection


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a damaged run that stay."""

    run_id: str
    keep: tuple[Record, ...]
    lost: tuple[Range, ...]
    """Ranges of seqs that cannot be read and that no prune removed."""
    orphaned: tuple[Range, ...]
    """Ranges of checkpoints that can be read, and are built on lost ones."""
    problems: tuple[str, ...]
    head: int
    """The newest known seq."""
    rewrites: bool
    """True if the medium holds anything else than `keep`."""
    checkpoint: Header | None
    """The newest visible checkpoint of the run's own scope that can be loaded."""

    @property
    def needed(self) -> bool:
        return bool(self.rewrites or self.lost)

    @property
    def gaps(self) -> list[Gap]:
        """The ranges that the kept records pass over, for a prune note."""
        chain = Chain()
        for record in self.keep:
            chain.add(record.header)
        return chain.gaps


def plan_repair(inspection: Inspection) -> RepairPlan:
    """Keep the records that are whole, in the chain, and built on nothing lost."""
    whole = chained(inspection.records)
    seqs = [record.header.seq for record in whole]
    newest = max([inspection.head, *seqs[-1:]])
    lost = subtract_ranges(gaps_between(seqs, until=newest), pruned_in(whole))
    orphaned = _orphaned(whole, lost)
    keep = tuple(record for record in whole if record.header.seq not in orphaned)
    shown = [
        record.header
        for record in keep
        if record.header.frame != "note"
        and not record.header.scope
        and record.header.seq not in inspection.hidden
    ]
    if (lost or orphaned) and (not shown or _lacks_its_key(keep)):
        # No state can be loaded from what is left: all of it is put aside.
        orphaned, keep, shown = set(seqs), (), []
    rewrites = bool(inspection.problems) or len(keep) < len(inspection.records)
    if keep and keep[-1].header.seq < newest:
        rewrites = True
    return RepairPlan(
        run_id=inspection.run_id,
        keep=keep,
        lost=tuple(lost),
        orphaned=tuple(ranges_of(sorted(orphaned))),
        problems=inspection.problems,
        head=newest,
        rewrites=rewrites,
        checkpoint=shown[-1] if shown else None,
    )


def pruned_in(records: Iterable[Record]) -> list[Range]:
    """Return the ranges that prune notes announce."""
    return [
        (gap.first, gap.last)
        for record in records
        if (record.header.frame, record.header.kind) == ("note", "prune")
        for gap in read_prune_note(record.body)
    ]


def _lacks_its_key(records: Sequence[Record]) -> bool:
    """Return True if bodies are encrypted and their key note was lost, not erased."""
    notes = [record.header for record in records if record.header.frame == "note"]
    if any(note.kind == "key" or note.metadata == SHREDDED for note in notes):
        return False
    return any(is_encrypted(record.body) for record in records)


def _orphaned(records: Iterable[Record], lost: Sequence[Range]) -> set[int]:
    """Return the checkpoints whose chain of bases leads through lost records."""
    orphaned: set[int] = set()
    for header in (record.header for record in records):
        base = header.base_seq
        if header.frame == "delta" and base and (base in orphaned or covers(lost, base)):
            orphaned.add(header.seq)
    return orphaned
