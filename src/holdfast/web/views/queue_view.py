"""Queues, their runs, and the workers that execute them."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from holdfast.checkpoint.manager import CheckpointManager
from holdfast.core.policy import EntryState, QueueEntry, QueueInfo
from holdfast.executors import queue_entries, queues
from holdfast.storage.base import Leasing, Owner
from holdfast.storage.queueing import Queueing

_MOST = 100


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds leases of queued runs."""

    owner: str
    runs: list[str]


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a storage, and the runs of one of them or of all."""

    queues: list[QueueInfo]
    entries: list[QueueEntry]
    more: bool
    workers: list[WorkerRow]


def read_queues(
    manager: CheckpointManager, queue: str | None, state: EntryState | None
) -> QueueView | None:
    """The queues with at most 100 runs; None if the storage keeps no queues."""
    storage = manager.storage
    if not isinstance(storage, Queueing):
        return None
    found = queue_entries(queue, state=state, limit=_MOST + 1, storage=manager)
    running = queue_entries(queue, state="running", limit=_MOST, storage=manager)
    held: defaultdict[str, list[str]] = defaultdict(list)
    for entry in running:
        lease = storage.lease_of(entry.run_id) if isinstance(storage, Leasing) else None
        if lease is not None and lease.owner is not None:
            held[owner_words(lease.owner)].append(entry.run_id)
    return QueueView(
        queues=queues(manager),
        entries=found[:_MOST],
        more=len(found) > _MOST,
        workers=[WorkerRow(owner=owner, runs=runs) for owner, runs in sorted(held.items())],
    )


def owner_words(owner: Owner) -> str:
    """The process that holds a lease, in words."""
    return f"process {owner.pid} on {owner.host}"
