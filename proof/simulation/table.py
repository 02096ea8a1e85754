"""The table of queues with indexes, in memory: what a database does for the real rules."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from surehold.core.policy import QueueEntry, QueueSettings, order_of
from surehold.core.records import Lease
from surehold.storage.queueing import EntryQuery, StaleClaim, WorkerInfo
from surehold.storage.shared import LeasedQueueTable

__all__ = ["IndexedTable"]

_AT_ONCE = 500
"""Entries that become ready in one transaction, as on the servers."""


class IndexedTable(LeasedQueueTable):
    """Entries by run, with heaps of ready and due entries; a stale place in a heap is skipped."""

    def __init__(self) -> None:
        self.entries: dict[str, QueueEntry] = {}
        self.leases: dict[str, Lease] = {}
        self.states: Counter[str] = Counter()
        self._running: dict[str, None] = {}
        self._ready: dict[tuple[str, str], list[tuple[tuple[int, float], int, QueueEntry]]]
        self._ready = defaultdict(list)
        self._due: list[tuple[float, int, QueueEntry]] = []
        self._settings: dict[str, QueueSettings] = {}
        self._starts: dict[str, list[float]] = {}
        self._workers: dict[str, tuple[float, WorkerInfo]] = {}
        self._newest: dict[tuple[str, str], float] = {}
        self._order = count()
        self._of_host: defaultdict[str, set[str]] = defaultdict(set)
        self._ends: list[tuple[float, str]] = []
        self._ended: set[str] = set()
        """Runs whose lease may have ended."""
        self._swept: Iterable[str] | None = None

    def lease(self, run_id: str) -> Lease | None:
        return self.leases.get(run_id)

    def put_lease(self, lease: Lease) -> None:
        before = self.leases.get(lease.run_id)
        self.leases[lease.run_id] = lease
        if before is not None and before.owner is not None:
            self._of_host[before.owner.host].discard(lease.run_id)
        if lease.owner is not None:
            heapq.heappush(self._ends, (lease.expires_at, lease.run_id))
            self._of_host[lease.owner.host].add(lease.run_id)

    def stale(self, now: float, host: str | None) -> list[StaleClaim]:
        while self._ends and self._ends[0][0] <= now:
            self._ended.add(heapq.heappop(self._ends)[1])
        self._ended = {run_id for run_id in self._ended if self._may_be_stale(run_id, now)}
        self._swept = {*self._ended, *self._of_host[host or ""]}
        try:
            return super().stale(now, host)
        finally:
            self._swept = None

    def _may_be_stale(self, run_id: str, now: float) -> bool:
        return run_id in self._running and self.leases[run_id].expires_at <= now

    def get(self, run_id: str) -> QueueEntry | None:
        return self.entries.get(run_id)

    def put(self, run_id: str, entry: QueueEntry | None) -> None:
        before = self.entries.pop(run_id, None)
        if before is not None:
            self.states[before.state] -= 1
            self._running.pop(run_id, None)
        if entry is None:
            return
        self.entries[run_id] = entry
        self.states[entry.state] += 1
        if entry.state == "ready":
            place = (order_of(entry), next(self._order), entry)
            heapq.heappush(self._ready[entry.queue, entry.target], place)
            newest = self._newest.get((entry.queue, entry.key), entry.rank)
            self._newest[entry.queue, entry.key] = max(newest, entry.rank)
        elif entry.state == "running":
            self._running[run_id] = None
        elif entry.due is not None:
            heapq.heappush(self._due, (entry.due, next(self._order), entry))

    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        found: list[QueueEntry] = []
        for target in targets:
            heap, seen = self._ready[queue, target], []
            while heap and len(seen) < limit:
                place = heapq.heappop(heap)
                if self.entries.get(place[2].run_id) is place[2]:
                    seen.append(place)
            for place in seen:
                heapq.heappush(heap, place)
            found += (entry for _, _, entry in seen if entry.key not in full)
        return found

    def due(self, now: float) -> list[QueueEntry]:
        found: list[QueueEntry] = []
        while self._due and self._due[0][0] <= now and len(found) < _AT_ONCE:
            entry = heapq.heappop(self._due)[2]
            if self.entries.get(entry.run_id) is entry:
                found.append(entry)
        return found

    def next_due(self) -> float | None:
        while self._due and self.entries.get(self._due[0][2].run_id) is not self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def newest_rank(self, queue: str, key: str) -> float | None:
        return self._newest.get((queue, key))

    def find(self, query: EntryQuery) -> list[QueueEntry]:
        if query.run_ids is not None:
            named: Sequence[str] = query.run_ids
        else:
            assert self._swept is not None, "a worker asks for no others"
            named = sorted(self._swept)
        found = (self.entries[run_id] for run_id in named if run_id in self.entries)
        return [entry for entry in found if query.admits(entry)]

    def running(self, queue: str) -> Mapping[str, int]:
        return Counter(self.entries[run_id].key for run_id in self._running)

    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        return self._settings

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        self._settings[queue] = settings

    def starts(self, queue: str) -> list[float]:
        return self._starts.get(queue, [])

    def set_starts(self, queue: str, starts: list[float]) -> None:
        self._starts[queue] = starts

    def counts(self) -> Mapping[tuple[str, str], int]:
        return Counter((entry.queue, entry.state) for entry in self.entries.values())

    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        self._workers[worker.id] = now + ttl, worker

    def workers(self, now: float) -> list[WorkerInfo]:
        return [worker for until, worker in self._workers.values() if until > now]
