"""Overviews of runs: status, cost and origin.

All of it comes from heads and headers, so that no state is loaded and no key is needed.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from surehold.core.records import STATUSES
from surehold.engine.retention import RetentionManager
from surehold.storage.base import Lease, Leasing, RecordQuery, RunInfo, RunQuery, Storage, is_live
from surehold.storage.queueing import queues_in

_OF_RUN = ("run_id", "name", "step", "node", "checkpoints", "started_at", "saved_at")
"""Facts that a summary takes from the head of its run."""

STORED_AS_RUNNING = ("running", "queued", "dead", "stale")
"""The statuses that `status_of_run` gives a run that is stored as running."""
SHOWN_STATUSES = (*STATUSES, *STORED_AS_RUNNING[1:])
"""All that it gives."""
UNDER_WAY = ("running", "queued")
"""Those of a run that a process executes, or a worker takes next."""
_IN_QUEUE = {"ready": "queued", "waiting": "queued", "dead": "dead"}
"""The status of a run that no process executes, by the state of its queue entry."""


class EffectCost(msgspec.Struct, frozen=True):
    """The cost of a run's recorded effects."""

    tokens: int = 0
    dollars: float = 0.0


class Origin(msgspec.Struct, frozen=True):
    """The origin of a fork."""

    run_id: str
    checkpoint_id: str
    step: int


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a list shows it."""

    run_id: str
    name: str
    status: str
    """Its status; see `status_of_run`."""
    step: int
    node: str | None
    checkpoints: int
    stored_bytes: int
    started_at: datetime
    saved_at: datetime
    tokens: int
    dollars: float
    forks: int
    forked_from: Origin | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]


def spent(storage: Storage, run_id: str, up_to: int | None = None) -> EffectCost:
    """The cost of a run's effects, of all or of those up to a record.

    Pruned effects are not counted.
    """
    tokens, dollars = 0, 0.0
    for header in storage.headers(RecordQuery(run_id=run_id, kind="effect", notes=True)):
        told = header.metadata.get("spent")
        if isinstance(told, dict) and (up_to is None or header.seq <= up_to):
            tokens += told.get("tokens", 0)
            dollars += told.get("dollars", 0.0)
    return EffectCost(tokens, dollars)


def fork_origins(storage: Storage) -> dict[str, Origin]:
    """Return the origin of each fork in the storage, by the fork's run id."""
    origins: dict[str, Origin] = {}
    for header in storage.headers(RecordQuery(kind="fork")):
        told = header.metadata.get("forked_from")
        try:
            origins[header.run_id] = msgspec.convert(told, Origin)
        except msgspec.ValidationError:
            continue  # of another system's making
    return origins


def status_of_run(storage: Storage, run: RunInfo) -> str:
    """The run's status as people are told it.

    A run that is stored as running, and that no process executes, is ``queued`` if a worker
    takes it, ``dead`` if none does any more, else ``stale``; one that was never leased nor queued
    counts as running. Runs that waited for an answer were once saved as ``interrupted``: they are
    ``waiting``.
    """
    if run.status == "interrupted" and _asks(storage, run.run_id):
        return "waiting"
    if run.status != "running" or not isinstance(storage, Leasing):
        return run.status
    lease = storage.lease_of(run.run_id)
    if is_live(lease, time.time()):
        return run.status
    queues = queues_in(storage)
    entry = queues.entry_of(run.run_id) if queues is not None else None
    if entry is not None and entry.state in _IN_QUEUE:
        return _IN_QUEUE[entry.state]
    if lease is None or _only_encrypted(storage, run, lease):
        return run.status
    now = next(iter(storage.runs(RunQuery(run_id=run.run_id))), run)
    if now.seq == run.seq and storage.lease_of(run.run_id) == lease:
        return "stale"
    return status_of_run(storage, now)  # it came further before its lease was looked at


def _only_encrypted(storage: Storage, run: RunInfo, lease: Lease) -> bool:
    """Return whether a run's first lease was taken only to encrypt it."""
    if lease.epoch != 1:
        return False
    query = RecordQuery(run_id=run.run_id, notes=True, limit=1)
    newest = next(iter(storage.headers(query)), None)
    return newest is not None and newest.kind == "key" and newest.epoch == 1


def runs_with_status(storage: Storage, query: RunQuery, status: str | None) -> Iterator[RunInfo]:
    """The runs of *query* that `status_of_run` may give this status, newest first.

    One that waits may be stored as interrupted.
    """
    stored: dict[str, tuple[str, ...]] = dict.fromkeys(STORED_AS_RUNNING, ("running",))
    stored["waiting"] = ("waiting", "interrupted")
    found = (
        storage.runs(msgspec.structs.replace(query, status=one))
        for one in stored.get(status or "", (status,))
    )
    return heapq.merge(*found, key=lambda run: -run.ordinal)


def _asks(storage: Storage, run_id: str) -> bool:
    """Return whether the newest question of a run has no answer."""
    newest = {
        kind: max((header.seq for header in storage.headers(query)), default=0)
        for kind in ("question", "answer")
        for query in [RecordQuery(run_id=run_id, kind=kind, notes=True, limit=1)]
    }
    return newest["question"] > newest["answer"]


def summaries(
    retention: RetentionManager, storage: Storage, runs: Iterable[RunInfo]
) -> list[RunSummary]:
    """These runs, each with its facts."""
    chosen = list(runs)
    origins = fork_origins(storage)
    forks = Counter(origin.run_id for origin in origins.values())
    made = []
    for run in chosen:
        newest = next(
            iter(storage.headers(RecordQuery(run_id=run.run_id, scope="", limit=1))), None
        )
        cost = spent(storage, run.run_id)
        made.append(
            RunSummary(
                **{name: getattr(run, name) for name in _OF_RUN},
                status=status_of_run(storage, run),
                stored_bytes=run.stored,
                tokens=cost.tokens,
                dollars=cost.dollars,
                forks=forks[run.run_id],
                forked_from=origins.get(run.run_id),
                tags=retention.with_tags(newest).tags if newest else (),
                metadata=dict(newest.metadata) if newest else {},
            )
        )
    return made
