"""Queues, their runs, and the workers that execute them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.checkpoint.inspect import RunSummary
from holdfast.checkpoint.manager import CheckpointManager
from holdfast.core.policy import EntryState, QueueEntry, QueueInfo, Unserved, WorkerProcess
from holdfast.executors import list_workers, queue_entries, queues, unserved
from holdfast.storage.base import Owner
from holdfast.storage.queueing import queues_in

_MOST = 100
_WORDS = {"ready": "queued", "waiting": "queued", "dead": "dead letter", "cancelled": "cancelled"}


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


def not_begun(manager: CheckpointManager, runs: Iterable[RunSummary]) -> dict[str, str]:
    """The runs stored as running that no worker executes, with their queues' state."""
    kept = queues_in(manager.storage)
    if kept is None:
        return {}
    entries = [kept.entry_of(run.run_id) for run in runs if run.status == "running"]
    return {one.run_id: _WORDS[one.state] for one in entries if one and one.state in _WORDS}


def owner_words(owner: Owner) -> str:
    """The process that holds a lease, in words."""
    return f"process {owner.pid} on {owner.host}"
