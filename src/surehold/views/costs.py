"""Costs of the recorded effects of runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

import msgspec

from surehold.core.values import remember
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RecordQuery, RunInfo, Storage

_RUNS_KNOWN = 64


class EffectCost(msgspec.Struct, frozen=True):
    """The cost of a run's recorded effects."""

    tokens: int = 0
    dollars: float = 0.0


class Spending(EffectCost, frozen=True, kw_only=True):
    """The cost of the effects of one node."""

    node: str
    calls: int = 0


def spent(storage: Storage, run_id: str, up_to: int | None = None) -> EffectCost:
    """The cost of a run's effects, of all or of those up to a record.

    Pruned effects are not counted.
    """
    total = EffectCost()
    for seq, _, tokens, dollars in _recorded(storage, run_id):
        if up_to is None or seq <= up_to:
            total = EffectCost(total.tokens + tokens, total.dollars + dollars)
    return total


def _recorded(
    storage: Storage, run_id: str, after: int = 0
) -> Iterator[tuple[int, str, int, float]]:
    """Record, node, tokens and dollars of each effect after a record, newest first."""
    for header in storage.headers(RecordQuery(run_id=run_id, kind="effect", notes=True)):
        if header.seq <= after:
            return
        told: Any = header.metadata.get("spent")
        if isinstance(told, dict):
            tokens, dollars = told.get("tokens", 0), told.get("dollars", 0.0)
            yield header.seq, header.node or "", int(tokens), float(dollars)


class Costs:
    """Recorded costs of runs up to any record; bounded, and read incrementally."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._known: OrderedDict[tuple[str, int], list[tuple[int, str, int, float]]] = OrderedDict()
        self._lock = Lock()

    def up_to(self, run: RunInfo, seq: int) -> list[Spending]:
        """The costs by node of the effects up to a record, the most expensive first."""
        made: dict[str, Spending] = {}
        for at, node, tokens, dollars in self._entries(run):
            if at <= seq:
                old = made.get(node, Spending(node=node))
                made[node] = Spending(
                    node=node,
                    calls=old.calls + 1,
                    tokens=old.tokens + tokens,
                    dollars=old.dollars + dollars,
                )
        return sorted(made.values(), key=lambda one: (-one.dollars, -one.tokens, one.node))

    def _entries(self, run: RunInfo) -> list[tuple[int, str, int, float]]:
        key = (run.run_id, run.ordinal)
        with self._lock:
            known = self._known.get(key, [])
        newest = known[-1][0] if known else 0
        fresh = [*_recorded(self._manager.storage, run.run_id, newest)]
        whole = [*known, *reversed(fresh)]
        with self._lock:
            remember(self._known, key, whole, most=_RUNS_KNOWN)
        return whole
