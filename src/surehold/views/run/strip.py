"""A run's steps as a strip: each with its time and cost, from headers alone.

A run is read once; after that only its new records are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from threading import Lock
from typing import Any, Literal

import msgspec

from surehold.core.records import Header
from surehold.core.values import remember
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RecordQuery, RunInfo, Storage
from surehold.views.costs import Payment, Spending, by, spent_in
from surehold.views.run.calls import CALL_DOORS
from surehold.views.words import money, span

_RUNS_KNOWN = 32
_MOST = 20_000
"""Newest records of a run that are read."""
_MOST_AT_ONCE = 64
_AWAITED = ("question", "timer")


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """The notes since a checkpoint, added up."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    waited: bool = False

    def with_note(self, header: Header, spent: Payment | None) -> Gathered:
        """With one more note."""
        return Gathered(
            calls=self.calls + (header.kind == "effect"),
            tokens=self.tokens + (spent.tokens if spent else 0),
            dollars=self.dollars + (spent.dollars if spent else 0.0),
            waited=self.waited or header.kind in _AWAITED,
        )


class StripStep(Gathered, frozen=True, kw_only=True):
    """A checkpoint of the run itself, and what was recorded since the one before it."""

    seq: int
    id: str
    step: int
    node: str
    kind: str
    status: str
    saved_at: float
    epoch: int
    seconds: float = 0.0
    """Since the checkpoint before it; of a pause as well."""
    is_resumed: bool = False
    """True if another process took the run over: the time before it is a pause."""
    tags: tuple[str, ...] = ()


class Past(msgspec.Struct, kw_only=True):
    """The moments of a run, oldest first, and what was spent in it."""

    moments: list[StripStep] = []
    spent: list[Payment] = []
    last: int = 0
    """The newest record that was read."""
    is_whole: bool = True
    """False if the oldest records were left out."""
    open: Gathered = Gathered()
    """What was recorded after the newest checkpoint."""


class Pasts:
    """The pasts of runs; bounded, and read incrementally."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._known: OrderedDict[tuple[str, int], Past] = OrderedDict()
        self._lock = Lock()

    def of(self, run: RunInfo) -> Past:
        """The past of a run, up to its newest record."""
        key = (run.run_id, run.ordinal)
        with self._lock:
            past = self._known.get(key)
        if past is None or past.last < run.seq:
            fresh = _read(self._manager.storage, run, past.last if past else 0)
            past = _continued(past or Past(), fresh, calls=run.door in CALL_DOORS)
            with self._lock:
                remember(self._known, key, past, most=_RUNS_KNOWN)
        return past


def _read(storage: Storage, run: RunInfo, after: int) -> list[Header]:
    """The headers of records after *after*, oldest first."""
    found: list[Header] = []
    for header in islice(storage.headers(RecordQuery(run_id=run.run_id, notes=True)), _MOST + 1):
        if header.seq <= after:
            break
        found.append(header)
    return found[::-1]


def _continued(past: Past, fresh: list[Header], *, calls: bool) -> Past:
    """*past* with further records; what others hold of it is not changed.

    With *calls* each call is a moment, as it is a step of its run.
    """
    is_whole = past.is_whole and len(fresh) <= _MOST
    moments = [*past.moments] if len(fresh) <= _MOST else []
    spent = [*past.spent] if len(fresh) <= _MOST else []
    left = past.open if len(fresh) <= _MOST else Gathered()
    for header in fresh[-_MOST:]:
        is_call = calls and header.kind == "effect" and header.frame == "note"
        if header.frame == "note":
            one = spent_in(header)
            if one is not None:
                spent.append(one)
            left = left.with_note(header, one)
            if header.kind == "tag":
                moments = _tagged(moments, header)
        if is_call:
            moments = _without_begun(moments, header)
        if not header.scope and (is_call or header.frame != "note"):
            before = moments[-1] if moments else None
            moments.append(
                StripStep(
                    seq=header.seq,
                    id=header.id,
                    step=header.step,
                    node=header.node or "",
                    kind=header.kind,
                    status=header.status,
                    saved_at=header.saved_at.timestamp(),
                    epoch=header.epoch,
                    seconds=_since(before, header),
                    is_resumed=before is not None and header.epoch > before.epoch > 0,
                    calls=left.calls,
                    tokens=left.tokens,
                    dollars=left.dollars,
                    waited=left.waited,
                    tags=header.tags,
                )
            )
            left = Gathered()
    last = fresh[-1].seq if fresh else past.last
    return Past(moments=moments, spent=spent, last=last, is_whole=is_whole, open=left)


def _without_begun(moments: list[StripStep], call: Header) -> list[StripStep]:
    """The moments without the one of the note that said that this call began."""
    for at in range(len(moments) - 1, max(-1, len(moments) - _MOST_AT_ONCE), -1):
        if moments[at].kind == "effect" and moments[at].step == call.step:
            return [*moments[:at], *moments[at + 1 :]]
    return moments


def _since(before: StripStep | None, header: Header) -> float:
    return max(0.0, header.saved_at.timestamp() - before.saved_at) if before else 0.0


def _tagged(moments: list[StripStep], header: Header) -> list[StripStep]:
    """The moments after a tag was set or removed."""
    told: dict[str, Any] = dict(header.metadata)
    added, removed = [*map(str, told.get("add", ()))], told.get("remove", ())

    def tagged(one: StripStep) -> StripStep:
        left = [tag for tag in one.tags if tag not in removed]
        return msgspec.structs.replace(one, tags=tuple(dict.fromkeys([*left, *added])))

    return [tagged(one) if one.seq == told.get("target") else one for one in moments]


def in_buckets(moments: list[StripStep], most: int) -> list[list[StripStep]]:
    """The moments in at most so many groups of neighbours, oldest first."""
    size = max(1, -(-len(moments) // most))
    return [moments[at : at + size] for at in range(0, len(moments), size)]


def nodes_of(past: Past) -> dict[int, str]:
    """The node of each record that cost something: its own, else that of its step."""
    named: dict[int, str] = {}
    steps: Iterable[StripStep] = iter(past.moments)
    step = next(iter(steps), None)
    for one in past.spent:
        while step is not None and step.seq < one.seq:
            step = next(iter(steps), None)
        of_step = step.node if step is not None else ""
        named[one.seq] = one.node or of_step or one.name
    return named


def facts_of_nodes(past: Past, seq: int) -> dict[str, str]:
    """The time and the cost of each node up to a record, in a few words."""
    seconds: dict[str, float] = {}
    for one in past.moments:
        if one.seq <= seq and one.node and not one.is_resumed and not one.waited:
            seconds[one.node] = seconds.get(one.node, 0.0) + one.seconds
    dollars = {one.node: one.dollars for one in spending(past, seq)}
    return {
        node: " · ".join(filter(None, (span(whole), money(dollars.get(node, 0.0)))))
        for node, whole in seconds.items()
    }


def spending(past: Past, seq: int, key: Literal["node", "model"] = "node") -> list[Spending]:
    """The costs up to a record by node or model, the most expensive first."""
    named = nodes_of(past) if key == "node" else {one.seq: one.model for one in past.spent}
    return by((one for one in past.spent if one.seq <= seq), lambda one: named[one.seq])
