"""The entries of queues in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from surehold.core.policy import QueueEntry, QueueSettings, order_of
from surehold.core.records import Lease
from surehold.storage.queueing import EntryQuery, WorkerInfo
from surehold.storage.shared import LeasedQueueTable


class MemoryQueues(LeasedQueueTable):
    """Dictionaries that are looked through; the storage's lock is held meanwhile."""

    def __init__(self, leases: dict[str, Lease]) -> None:
        self._leases = leases
        self._entries: dict[str, QueueEntry] = {}
        self._settings: dict[str, QueueSettings] = {}
        self._starts: dict[str, list[float]] = {}
        self._workers: dict[str, tuple[float, WorkerInfo]] = {}

    def lease(self, run_id: str) -> Lease | None:
        return self._leases.get(run_id)

    def put_lease(self, lease: Lease) -> None:
        self._leases[lease.run_id] = lease

    def due(self, now: float) -> list[QueueEntry]:
        return [
            entry
            for entry in self._entries.values()
            if entry.state == "waiting" and entry.due is not None and entry.due <= now
        ]

    def next_due(self) -> float | None:
        waiting = (one.due for one in self._entries.values() if one.state == "waiting")
        return min((due for due in waiting if due is not None), default=None)

    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        return self._settings

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        self._settings[queue] = settings

    def running(self, queue: str) -> Mapping[str, int]:
        return Counter(entry.key for entry in self._of(queue, "running"))

    def starts(self, queue: str) -> list[float]:
        return self._starts.get(queue, [])

    def set_starts(self, queue: str, starts: list[float]) -> None:
        self._starts[queue] = starts

    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        found = (
            entry
            for entry in self._of(queue, "ready")
            if entry.target in targets and entry.key not in full
        )
        return sorted(found, key=order_of)[:limit]

    def get(self, run_id: str) -> QueueEntry | None:
        return self._entries.get(run_id)

    def put(self, run_id: str, entry: QueueEntry | None) -> None:
        if entry is None:
            self._entries.pop(run_id, None)
        else:
            self._entries[run_id] = entry

    def newest_rank(self, queue: str, key: str) -> float | None:
        ranks = (entry.rank for entry in self._of(queue, "ready") if entry.key == key)
        return max(ranks, default=None)

    def find(self, query: EntryQuery) -> list[QueueEntry]:
        found = [entry for entry in self._entries.values() if query.admits(entry)]
        return sorted(found, key=lambda one: (one.queue, one.state, order_of(one)))[: query.limit]

    def counts(self) -> Mapping[tuple[str, str], int]:
        return Counter((entry.queue, entry.state) for entry in self._entries.values())

    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        self._workers = {id: one for id, one in self._workers.items() if one[0] > now}
        self._workers[worker.id] = now + ttl, msgspec.structs.replace(worker, seen=now)

    def workers(self, now: float) -> list[WorkerInfo]:
        return [worker for until, worker in self._workers.values() if until > now]

    def _of(self, queue: str, state: str) -> Iterable[QueueEntry]:
        entries = self._entries.values()
        return (entry for entry in entries if (entry.queue, entry.state) == (queue, state))
