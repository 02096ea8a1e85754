"""Queues on top of one table of entries, changed in transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from surehold.core.policy import (
    QueueChange,
    QueueEntry,
    QueueInfo,
    QueueSettings,
    after_change,
    allowed,
    choose,
    next_rank,
    order_of,
)
from surehold.core.records import Lease, Owner, released, renewed, taken
from surehold.errors import ConflictError, LeaseHeldError
from surehold.storage.process import owner_is_dead
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, StaleClaim, WorkerInfo

T = TypeVar("T")


class QueueTable(ABC):
    """The entries of a medium within one transaction, which sees no other half done."""

    @abstractmethod
    def clock(self, now: float) -> float:
        """The time by which the medium compares; *now* is the caller's."""

    @abstractmethod
    def promote(self, now: float, queues: Sequence[str]) -> Mapping[str, QueueSettings]:
        """Make due entries ready; return the settings of their limited queues.

        Whoever else starts runs of those waits for this transaction.
        """

    @abstractmethod
    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        """The settings of all queues that have some, or of one."""

    @abstractmethod
    def set_settings(self, queue: str, settings: QueueSettings) -> None: ...

    @abstractmethod
    def running(self, queue: str) -> Mapping[str, int]:
        """The number of running entries of a queue, by key."""

    @abstractmethod
    def starts(self, queue: str) -> list[float]:
        """The times of the last starts, as `set_starts` kept them."""

    @abstractmethod
    def set_starts(self, queue: str, starts: list[float]) -> None: ...

    @abstractmethod
    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        """The first ready entries of a queue for each target, without *full* keys."""

    @abstractmethod
    def take(
        self, entries: Sequence[QueueEntry], owner: Owner, *, now: float, ttl: float
    ) -> list[Claim]:
        """Mark entries as running and take their leases.

        An entry whose run another process holds waits until that lease may have ended.
        """

    @abstractmethod
    def next_due(self) -> float | None:
        """The time at which the first waiting entry becomes ready."""

    @abstractmethod
    def get(self, run_id: str) -> QueueEntry | None: ...

    @abstractmethod
    def put(self, run_id: str, entry: QueueEntry | None) -> None: ...

    @abstractmethod
    def newest_rank(self, queue: str, key: str) -> float | None:
        """The highest rank of a key's ready entries."""

    @abstractmethod
    def find(self, query: EntryQuery) -> list[QueueEntry]: ...

    @abstractmethod
    def counts(self) -> Mapping[tuple[str, str], int]:
        """The number of entries by queue and state."""

    @abstractmethod
    def renew(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        """See `Queueing.renew_claims`."""

    @abstractmethod
    def settle(self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool) -> bool:
        """See `Queueing.settle`."""

    @abstractmethod
    def stale(self, now: float, host: str | None) -> list[StaleClaim]:
        """See `Queueing.stale_claims`."""

    @abstractmethod
    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        """See `Queueing.announce`; removes expired announcements as well."""

    @abstractmethod
    def workers(self, now: float) -> list[WorkerInfo]:
        """See `Queueing.workers`, in any order."""


class LeasedQueueTable(QueueTable):
    """A table, with leases, that no other transaction changes meanwhile."""

    @abstractmethod
    def lease(self, run_id: str) -> Lease | None: ...

    @abstractmethod
    def put_lease(self, lease: Lease) -> None: ...

    def clock(self, now: float) -> float:
        return now

    def promote(self, now: float, queues: Sequence[str]) -> Mapping[str, QueueSettings]:
        for entry in self.due(now):
            rank = entry.due if entry.due is not None else now
            ready = msgspec.structs.replace(entry, state="ready", rank=rank, due=None)
            self.put(entry.run_id, ready)
        return {name: one for name, one in self.settings().items() if one.limited}

    @abstractmethod
    def due(self, now: float) -> list[QueueEntry]:
        """Some of the waiting entries that are due, the earliest first."""

    def take(
        self, entries: Sequence[QueueEntry], owner: Owner, *, now: float, ttl: float
    ) -> list[Claim]:
        claims: list[Claim] = []
        for entry in entries:
            held = self.lease(entry.run_id)
            try:
                dead = owner_is_dead(held)
                lease = taken(held, entry.run_id, owner, now=now, ttl=ttl, owner_is_dead=dead)
            except LeaseHeldError as error:
                later = msgspec.structs.replace(entry, state="waiting", due=error.until)
                self.put(entry.run_id, later)
                continue
            self.put_lease(lease)
            running = msgspec.structs.replace(entry, state="running", woken=False)
            self.put(entry.run_id, running)
            claims.append(Claim(entry=running, lease=lease))
        return claims

    def renew(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        lost: list[str] = []
        for lease in leases:
            try:
                self.put_lease(renewed(self.lease(lease.run_id), lease, now=now, ttl=ttl))
            except ConflictError:
                lost.append(lease.run_id)
        return lost

    def settle(self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool) -> bool:
        newest = self.lease(lease.run_id)
        free = released(newest, lease)
        if free is None or (expired and free.expires_at > now):
            return False
        self.put_lease(free)
        held = self.get(lease.run_id)
        if held is not None and held.state == "running":
            self.put(lease.run_id, settled_entry(held, entry, now=now))
        return True

    def stale(self, now: float, host: str | None) -> list[StaleClaim]:
        found: list[StaleClaim] = []
        for entry in self.find(EntryQuery(state="running")):
            lease = self.lease(entry.run_id)
            if lease is None:
                continue
            gone = lease.owner is None or lease.expires_at <= now
            if gone or host is None or (lease.owner is not None and lease.owner.host == host):
                found.append(StaleClaim(entry=entry, lease=lease, expired=gone))
        return found


class QueueSlots(ABC):
    """The `Queueing` ability of a medium that has a `QueueTable`."""

    @abstractmethod
    def in_queues(self, work: Callable[[QueueTable], T]) -> T:
        """Do *work* in one transaction."""

    def ask_queues(self, work: Callable[[QueueTable], T]) -> T:
        """Do *work*, a single step of its table: no transaction is needed."""
        return self.in_queues(work)

    @property
    def keeps_queues(self) -> bool:
        """See `Queueing.keeps_queues`."""
        return True

    def renew_claims(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        return self.ask_queues(lambda table: table.renew(leases, now=now, ttl=ttl))

    def settle(
        self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool = False
    ) -> bool:
        return self.ask_queues(lambda table: table.settle(lease, entry, now=now, expired=expired))

    def stale_claims(self, *, now: float, host: str | None = None) -> list[StaleClaim]:
        return self.ask_queues(lambda table: table.stale(now, host))

    def claim(self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float) -> list[Claim]:
        return self.in_queues(lambda table: _claim(table, query, owner, now=now, ttl=ttl))

    def idle_for(self, query: ClaimQuery, *, now: float) -> float | None:
        return self.in_queues(lambda table: _idle_for(table, query, now=table.clock(now)))

    def ready(self, query: ClaimQuery, *, now: float) -> list[QueueEntry]:
        return self.in_queues(lambda table: _ready(table, query, now=now))

    def entry_of(self, run_id: str) -> QueueEntry | None:
        return self.ask_queues(lambda table: table.get(run_id))

    def entries(self, query: EntryQuery) -> Iterator[QueueEntry]:
        return iter(self.ask_queues(lambda table: table.find(query)))

    def put_entries(self, entries: Iterable[tuple[str, QueueEntry | None]]) -> None:
        def work(table: QueueTable) -> None:
            for run_id, entry in entries:
                table.put(run_id, entry)

        self.in_queues(work)

    def queues(self) -> list[QueueInfo]:
        def work(table: QueueTable) -> list[QueueInfo]:
            counts, known = table.counts(), table.settings()
            names = sorted({queue for queue, _ in counts} | known.keys())
            return [_info(name, known.get(name), counts) for name in names]

        return self.in_queues(work)

    def settings_of(self, name: str) -> QueueSettings:
        return self.ask_queues(lambda table: table.settings(name).get(name, QueueSettings()))

    def set_queue(self, name: str, settings: QueueSettings) -> None:
        self.ask_queues(lambda table: table.set_settings(name, settings))

    def announce(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        self.ask_queues(lambda table: table.put_worker(worker, now=now, ttl=ttl))

    def workers(self, *, now: float) -> list[WorkerInfo]:
        found = self.ask_queues(lambda table: table.workers(now))
        return sorted(found, key=lambda worker: (worker.since, worker.id))


def _info(
    name: str, settings: QueueSettings | None, counts: Mapping[tuple[str, str], int]
) -> QueueInfo:
    here = {state: count for (queue, state), count in counts.items() if queue == name}
    return QueueInfo(name=name, settings=settings or QueueSettings(), **here)


def _claim(
    table: QueueTable, query: ClaimQuery, owner: Owner, *, now: float, ttl: float
) -> list[Claim]:
    settings = table.promote(now, query.queues)
    time = table.clock(now) if settings else now
    room: dict[str, int | None] = {}
    key_room: dict[tuple[str, str], int] = {}
    starts: dict[str, list[float]] = {}
    candidates: list[QueueEntry] = []
    named = _named(table, query)
    queues = query.queues if query.run_id is None else tuple(one.queue for one in named)
    for queue in dict.fromkeys(queues):
        limits = settings.get(queue)
        full: list[str] = []
        most = query.limit
        if limits is not None:
            by_key = table.running(queue)
            since = time - limits.period
            starts[queue] = [at for at in table.starts(queue) if at > since] if limits.rate else []
            room[queue] = allowed(limits, running=sum(by_key.values()), recent=len(starts[queue]))
            if room[queue] == 0:
                continue
            if limits.key_concurrency is not None:
                free = {key: limits.key_concurrency - count for key, count in by_key.items()}
                full = [key for key, left in free.items() if left < 1]
        if query.run_id is None:
            found = table.ready(queue, query.targets, full, most)
        else:
            found = [entry for entry in named if entry.key not in full]
        if limits is not None and limits.key_concurrency is not None:
            for entry in found:
                used = by_key.get(entry.key, 0)
                key_room[queue, entry.key] = limits.key_concurrency - used
        candidates += found
    chosen = choose(candidates, room, key_room, query.limit)
    if not chosen:
        return []
    claims = table.take(chosen, owner, now=now, ttl=ttl)
    for queue, earlier in starts.items():
        started = [time] * sum(claim.entry.queue == queue for claim in claims)
        if started and settings[queue].rate:
            table.set_starts(queue, [*earlier, *started])
    return claims


def _idle_for(table: QueueTable, query: ClaimQuery, *, now: float) -> float | None:
    if any(table.ready(queue, query.targets, (), 1) for queue in dict.fromkeys(query.queues)):
        return 0.0
    due = table.next_due()
    return None if due is None else max(due - now, 0.0)


def _ready(table: QueueTable, query: ClaimQuery, *, now: float) -> list[QueueEntry]:
    table.promote(now, query.queues)
    found = [
        entry
        for queue in dict.fromkeys(query.queues)
        for entry in table.ready(queue, query.targets, (), query.limit)
    ]
    return sorted(found, key=order_of)[: query.limit]


def _named(table: QueueTable, query: ClaimQuery) -> list[QueueEntry]:
    """The entry that *query* names, if it is ready and of a wanted queue and target."""
    entry = table.get(query.run_id) if query.run_id is not None else None
    if entry is None or entry.state != "ready":
        return []
    fits = entry.queue in query.queues and entry.target in query.targets
    return [entry] if fits else []


def apply_change(table: QueueTable, run_id: str, change: QueueChange, *, now: float) -> None:
    """Change the entry of a run as the records that are stored with it say."""
    entry = table.get(run_id)
    given, rank = change.submitted, now
    if given is not None:
        rank = next_rank(now, table.newest_rank(given.queue, given.key))
    changed = after_change(entry, change, run_id=run_id, rank=rank, now=now)
    if changed != entry:
        table.put(run_id, changed)


def settled_entry(held: QueueEntry, entry: QueueEntry | None, *, now: float) -> QueueEntry | None:
    """The entry to store for a claimed run, given what is stored now: *held*.

    An answer or a cancellation that came meanwhile is not forgotten.
    """
    if entry is None:
        return None
    cancelled = held.cancelled and entry.state != "cancelled"
    if (held.woken and entry.state == "waiting") or (cancelled and entry.state != "dead"):
        return msgspec.structs.replace(
            entry, state="ready", rank=now, due=None, woken=False, cancelled=held.cancelled
        )
    return msgspec.structs.replace(entry, woken=False, cancelled=held.cancelled)
