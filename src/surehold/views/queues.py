"""Queues, their runs, and the workers that execute them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from surehold.core.policy import (
    EntryState,
    QueueEntry,
    QueueInfo,
    QueueSettings,
    Unserved,
    WorkerProcess,
)
from surehold.engine.managers import CheckpointManager
from surehold.executors import list_workers, queue_entries, queues, unserved
from surehold.storage.queueing import queues_in
from surehold.views.documents import Document, Rows

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


class QueueRun(msgspec.Struct, kw_only=True):
    """A queued run."""

    run_id: str
    queue: str
    target: str
    state: str
    priority: int
    key: str
    due: datetime | None
    failures: int
    reason: str
    cancelled: bool

    @classmethod
    def of(cls, entry: QueueEntry) -> QueueRun:
        """The entry as documents hold it."""
        facts = {name: getattr(entry, name) for name in cls.__struct_fields__}
        due = None if entry.due is None else datetime.fromtimestamp(entry.due, UTC)
        return cls(**{**facts, "due": due})


class QueueList(Document, kw_only=True, tag="queues"):
    """``queue``"""

    queues: Annotated[list[QueueInfo], Rows("queue")]
    unserved: list[Unserved]
    """Ready runs that no worker takes, by queue and code."""


class QueueDocument(Document, kw_only=True, tag="queue"):
    """``queue show``, ``dead``, ``pause``, ``resume`` and ``limit``"""

    queue: str
    """Its name; empty for all."""
    settings: QueueSettings
    runs: Annotated[list[QueueRun], Rows("queued-run")]


class WorkerList(Document, kw_only=True, tag="workers"):
    """``queue workers``"""

    workers: Annotated[list[WorkerProcess], Rows("worker-process")]
