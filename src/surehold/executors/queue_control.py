"""Queues as people see and steer them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.core.policy import (
    QUEUED,
    EntryState,
    QueueEntry,
    QueueInfo,
    QueueSettings,
    Submission,
    Unserved,
    WorkerProcess,
    after_change,
    change_of,
)
from surehold.doors.submit import RunHandle, cancel_run
from surehold.engine.journal import Note, unknown_run
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import Owner, RecordQuery, Storage
from surehold.storage.queueing import EntryQuery, Queueing, WorkerInfo, check_queues


def queues(storage: Target = None) -> list[QueueInfo]:
    """The queues of a storage, each with its limits and its runs by state.

    >>> queues("memory://")
    []
    """
    with _opened(storage) as (_, kept):
        return kept.queues()


def queue_entries(
    queue: str | None = None,
    *,
    state: EntryState | None = None,
    limit: int | None = None,
    storage: Target = None,
) -> list[QueueEntry]:
    """The runs of a queue, or of all, in the order in which ready ones start."""
    with _opened(storage) as (_, kept):
        return [*kept.entries(EntryQuery(queue=queue, state=state, limit=limit))]


def list_workers(storage: Target = None) -> list[WorkerProcess]:
    """The workers of a storage, idle ones included.

    A worker announces itself three times in the length of a lease. A killed worker is listed
    until its lease expires.

    >>> list_workers("memory://")
    []
    """
    now = time.time()
    with _opened(storage) as (_, kept):
        announced, claims = kept.workers(now=now), kept.stale_claims(now=now)
    runs: dict[Owner, list[str]] = {one.owner: [] for one in announced}
    for claim in claims:
        if claim.lease.owner is not None and not claim.expired:
            runs.setdefault(claim.lease.owner, []).append(claim.entry.run_id)
    return [
        _process(owner, held, [one for one in announced if one.owner == owner])
        for owner, held in runs.items()
    ]


def _process(owner: Owner, runs: list[str], announced: list[WorkerInfo]) -> WorkerProcess:
    since = min((one.since for one in announced), default=None)
    seen = max((one.seen for one in announced), default=None)
    return WorkerProcess(
        host=owner.host,
        pid=owner.pid,
        queues=[*dict.fromkeys(name for one in announced for name in one.queues)],
        serves=[*dict.fromkeys(name for one in announced for name in one.targets)],
        concurrency=sum(one.concurrency for one in announced),
        started_at=None if since is None else datetime.fromtimestamp(since, UTC),
        seen_at=None if seen is None else datetime.fromtimestamp(seen, UTC),
        runs=sorted(runs),
    )


def unserved(storage: Target = None) -> list[Unserved]:
    """Ready runs whose queue, or whose code in their version, no worker serves.

    Of each queue the first 1,000 ready runs are looked at.
    """
    with _opened(storage) as (_, kept):
        served = {
            (queue, target)
            for one in kept.workers(now=time.time())
            for queue in one.queues
            for target in one.targets
        }
        waiting: Counter[tuple[str, str]] = Counter()
        for info in kept.queues():
            if info.ready and not info.settings.paused:
                query = EntryQuery(queue=info.name, state="ready", limit=1000)
                waiting.update((info.name, entry.target) for entry in kept.entries(query))
        return [
            Unserved(queue=queue, target=target, runs=runs)
            for (queue, target), runs in sorted(waiting.items())
            if (queue, target) not in served
        ]


def set_queue(queue: str, settings: QueueSettings, *, storage: Target = None) -> None:
    """Set the limits of a queue; runs that execute are left alone."""
    if not queue:
        raise UsageError("the queue has no name", hint="give one")
    with _opened(storage) as (_, kept):
        kept.set_queue(queue, settings)


def requeue(run_id: str, *, by: str = "", storage: Target = None) -> None:
    """Queue a dead letter, or a cancelled or waiting run, to be continued at once.

    The journal names *by* as the person who asked.
    """
    with _opened(storage) as (manager, kept):
        entry = kept.entry_of(run_id)
        if entry is None:
            raise _not_queued(run_id)
        if entry.state in ("ready", "running"):
            raise UsageError(f"run {run_id!r} is {entry.state} already", run_id=run_id)
        again = Submission(
            queue=entry.queue, target=entry.target, priority=entry.priority, key=entry.key
        )
        told = {QUEUED: msgspec.to_builtins(again)} | ({"by": by} if by else {})
        note = Note(kind=QUEUED, content={}, metadata=told)
        manager.append_notes(run_id, (note,))


def cancel(
    run_id: str, *, by: str = "", cleanup: float | None = None, storage: Target = None
) -> None:
    """Ask for a run to end, wherever it is executed, or before it starts.

    In a function `surehold.Cancelled` is raised once, at its next recorded call or wait; what is
    called on the way out is executed and recorded, for *cleanup* seconds at most (60), and the run
    ends ``cancelled``. A run that waits without a process gets it when it is resumed, which a
    worker does at once. A graph, an agent or a fleet stops after the node in progress as
    ``interrupted``, and a resume or `requeue` continues it. An ended run does not change.
    """
    with opened(storage) as manager:
        cancel_run(manager, run_id, by, cleanup)


def handle(run_id: str, *, storage: Target = None) -> RunHandle[Any]:
    """A handle to a run that any process began, whether or not its code is here.

    The value of a workflow's result is as it is stored: an object of yours is plain data.
    """
    with opened(storage) as manager:
        if manager.reader.run(run_id) is None:
            raise unknown_run(run_id)
    return RunHandle(run_id, storage)


def rebuild_queues(storage: Target = None) -> int:
    """Rebuild the entries of all queued runs from their journals; return the count.

    Runs that wait for a time or an answer become ready, and wait again once a worker looks at
    them. Failures are counted from zero. No worker may run meanwhile.
    """
    with _opened(storage) as (manager, kept):
        made: dict[str, QueueEntry | None] = {}
        for header in manager.storage.headers(RecordQuery(kind=QUEUED, notes=True)):
            if header.run_id not in made:
                made[header.run_id] = _entry_from(manager.storage, header.run_id)
        kept.put_entries(made.items())
        return sum(entry is not None for entry in made.values())


def _entry_from(storage: Storage, run_id: str) -> QueueEntry | None:
    """The entry that the journal of a run leads to, if no worker has touched it since."""
    entry: QueueEntry | None = None
    for record in storage.read(run_id):
        change, at = change_of((record,)), record.header.saved_at.timestamp()
        if change is not None:
            entry = after_change(entry, change, run_id=run_id, rank=at, now=time.time())
    return entry


def _not_queued(run_id: str) -> NotFoundError:
    return NotFoundError(
        f"run {run_id!r} is in no queue", hint="surehold queue lists them", run_id=run_id
    )


@contextmanager
def _opened(storage: Target) -> Iterator[tuple[CheckpointManager, Queueing]]:
    with opened(storage) as manager:
        yield manager, check_queues(manager.storage)
