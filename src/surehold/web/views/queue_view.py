"""Queues, their runs, and the workers that execute them."""

from __future__ import annotations

import msgspec

from surehold.core.policy import EntryState, QueueEntry, QueueInfo, Unserved, WorkerProcess
from surehold.engine.managers import CheckpointManager
from surehold.executors import list_workers, queue_entries, queues, unserved
from surehold.storage.base import Owner
from surehold.storage.queueing import queues_in

_MOST = 100


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queues of a storage, and the runs of one of them or of all."""

    queues: list[QueueInfo]
    entries: list[QueueEntry]
    more: bool
    workers: list[WorkerProcess]
    unserved: list[Unserved]


def read_queues(
    manager: CheckpointManager, queue: str | None, state: EntryState | None
) -> QueueView | None:
    """The queues with at most 100 runs; None if the storage keeps no queues."""
    if queues_in(manager.storage) is None:
        return None
    found = queue_entries(queue, state=state, limit=_MOST + 1, storage=manager)
    return QueueView(
        queues=queues(manager),
        entries=found[:_MOST],
        more=len(found) > _MOST,
        workers=list_workers(manager),
        unserved=unserved(manager),
    )


def owner_words(owner: Owner) -> str:
    """The process that holds a lease, in words."""
    return f"process {owner.pid} on {owner.host}"
