"""The storage as a node reaches it: round trips, the time of the database, and what fails."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from proof.simulation.table import IndexedTable
from proof.simulation.world import Node, World
from surehold.core.records import Lease, Owner, renewed
from surehold.errors import ConflictError, StorageUnavailableError
from surehold.storage.memory import MemoryStorage
from surehold.storage.notifications import Subscription
from surehold.storage.queueing import Claim, ClaimQuery, StaleClaim, WorkerInfo
from surehold.storage.shared import QueueSlots

__all__ = ["Costs", "Database", "Remote"]

T = TypeVar("T")
_GIVES_UP = 5.0
"""Seconds after which a call that gets no answer fails."""
_PATIENCE = 30.0
_PAUSE = 0.5


class Costs(msgspec.Struct, frozen=True):
    """Milliseconds of the database's processors for a call, and for each row of it.

    Those of PostgreSQL 18 on a shared machine with 2 cores: ``python -m proof.simulation.costs``.
    """

    claim: float = 1.4
    claimed: float = 0.02
    settle: float = 0.62
    renew: float = 0.5
    renewed: float = 0.012
    look: float = 0.45
    cancelled: float = 0.19
    sweep: float = 0.15
    swept: float = 0.0002
    announce: float = 0.23
    load: float = 0.43
    step: float = 0.43


class Database:
    """The table, and the processors that it shares among its callers."""

    def __init__(self, world: World, costs: Costs, processors: int) -> None:
        self.world, self.costs, self.table = world, costs, IndexedTable()
        self.used: Counter[str] = Counter()
        """Seconds of processors by kind of call."""
        self.is_away = False
        self.restarts = 0
        self._free = [0.0] * processors

    def serve(self, kind: str, milliseconds: float) -> float:
        """Reserve a processor; the seconds until the call is done."""
        seconds = milliseconds / 1000
        began = max(heapq.heappop(self._free), self.world.now)
        heapq.heappush(self._free, began + seconds)
        self.used[kind] += seconds
        return began + seconds - self.world.now


class Remote(MemoryStorage):
    """The storage for one node. It keeps queues, leases and steps; nothing else is asked for."""

    def __init__(self, database: Database, node: Node, round_trip: float) -> None:
        super().__init__()
        self.node = node
        self._database, self._half = database, round_trip / 2
        self._world, self._table, self._costs = database.world, database.table, database.costs

    def call(self, kind: str, cost: float, work: Callable[[], T]) -> T:
        """Have *work* done by the database. A lost answer is one that was given."""
        self._travel()
        restarts = self._database.restarts
        self._world.sleep(self._database.serve(kind, cost))
        if self._database.restarts != restarts:
            self._fail()
        done = work()
        self._travel()
        return done

    def patiently(self, kind: str, cost: float, work: Callable[[], T]) -> T:
        """The same, tried again for a while."""
        until = self._world.now + _PATIENCE
        while True:
            try:
                return self.call(kind, cost, work)
            except StorageUnavailableError:
                if self._world.now > until:
                    raise
                self._world.sleep(_PAUSE)

    def _travel(self) -> None:
        self._world.sleep(self._half)
        if self.node.is_cut_off or self._database.is_away:
            self._fail()

    def _fail(self) -> None:
        self._world.sleep(_GIVES_UP if self.node.is_cut_off else _PAUSE)
        raise StorageUnavailableError("the database does not answer")

    # What a worker asks for: the real rules, on the table

    def in_queues(self, work: Callable[[Any], T]) -> T:
        return self.call("other", self._costs.look, lambda: work(self._table))

    def claim(self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float) -> list[Claim]:
        costs, most = self._costs, min(query.limit, self._table.states["ready"])
        return self._as("claim", costs.claim + most * costs.claimed).claim(
            query, owner, now=self._world.now, ttl=ttl
        )

    def idle_for(self, query: ClaimQuery, *, now: float) -> float | None:
        return self._as("look", self._costs.look).idle_for(query, now=self._world.now)

    def renew_claims(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        cost = self._costs.renew + len(leases) * self._costs.renewed
        return self._as("renew", cost).renew_claims(leases, now=self._world.now, ttl=ttl)

    def settle(self, lease: Lease, entry: Any, *, now: float, expired: bool = False) -> bool:
        return self._as("settle", self._costs.settle).settle(
            lease, entry, now=self._world.now, expired=expired
        )

    def stale_claims(self, *, now: float, host: str | None = None) -> list[StaleClaim]:
        cost = self._costs.sweep + self._table.states["running"] * self._costs.swept
        return self._as("sweep", cost).stale_claims(now=self._world.now, host=host)

    def announce(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        self._as("announce", self._costs.announce).announce(worker, now=self._world.now, ttl=ttl)

    def entries(self, query: Any) -> Any:
        return self._as("cancelled", self._costs.cancelled).entries(query)

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        def work() -> Lease:
            newest = self._table.lease(lease.run_id)
            kept = renewed(newest, lease, now=self._world.now, ttl=ttl)
            self._table.put_lease(kept)
            return kept

        return self.call("renew", self._costs.renew, work)

    def commit(self, run_id: str, epoch: int, record: Callable[[], None]) -> None:
        """Store a step, unless another holder has come since."""

        def work() -> None:
            newest = self._table.lease(run_id)
            if newest is None or newest.epoch != epoch:
                raise ConflictError("the run was taken over", run_id=run_id)
            record()

        self.patiently("step", self._costs.step, work)

    def subscribe(self, notify: Any) -> Subscription:
        """Announce nothing: no program outside submits runs."""
        return Subscription()

    def _as(self, kind: str, cost: float) -> QueueSlots:
        return _Called(self, kind, cost)


class _Called(QueueSlots):
    """The rules of queues, within one call of a kind."""

    def __init__(self, remote: Remote, kind: str, cost: float) -> None:
        self._remote, self._kind, self._cost = remote, kind, cost

    def in_queues(self, work: Callable[[Any], T]) -> T:
        remote = self._remote
        return remote.call(self._kind, self._cost, lambda: work(remote._table))
