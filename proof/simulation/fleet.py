"""Real workers on simulated nodes, the runs that they execute, and who watches them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec

from proof.simulation.network import Costs, Database, Remote
from proof.simulation.world import Event, Node, World
from surehold.core.policy import QueueEntry, next_rank
from surehold.core.records import Owner
from surehold.engine.leases import RunLease
from surehold.errors import ConflictError
from surehold.executors import Worker
from surehold.executors.driving import Driven
from surehold.executors.serving import Served

__all__ = ["Fleet", "Plan"]

_CODE = Served("simulated:run", 1)
_QUEUE = "default"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes and faults of a simulation."""

    workers: int = 1000
    concurrency: int = 8
    backlog: int = 200_000
    """Runs that are ready at the start."""
    timers: int = 800_000
    """Runs that wait for a time."""
    spread: float = 3600.0
    """Seconds over which these times lie."""
    tenants: int = 100
    """Keys; the first has nine tenths of the backlog."""
    steps: int = 3
    step_seconds: float = 2.0
    """The mean of an exponential distribution."""
    lease: float = 30.0
    processors: int = 16
    """Of the database."""
    round_trip: float = 0.001
    costs: Costs = Costs()
    seed: int = 7


class Fleet:
    """The workers, and a record of what they did that they cannot see."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.world = plan, World()
        self.chance = random.Random(plan.seed)
        self.database = Database(self.world, plan.costs, plan.processors)
        self.nodes: list[Node] = []
        self.steps: defaultdict[str, int] = defaultdict(int)
        """The recorded steps of each run."""
        self.progress: dict[str, int] = {}
        """The epoch that recorded the last step of a run."""
        self.counts: Counter[str] = Counter()
        self.first: Counter[str] = Counter()
        """Runs of the backlog that were begun while all tenants had some left."""
        self.late: list[float] = []
        """Seconds from the time of a timer to its first step."""
        self.ended: Counter[int] = Counter()
        """Ended runs by ten seconds."""
        self._dues: dict[str, float] = {}
        self._backlog: dict[str, str] = {}
        self._left: Counter[str] = Counter()
        self._executing: Counter[str] = Counter()
        self._fill()

    def _fill(self) -> None:
        plan, now, put = self.plan, self.world.now, self.database.table.put
        for number in range(plan.backlog):
            big = number % 10 or plan.tenants == 1
            key = f"t{0 if big else 1 + number // 10 % (plan.tenants - 1)}"
            rank = next_rank(now, self.database.table.newest_rank(_QUEUE, key))
            put(f"r{number}", self._entry(f"r{number}", key, state="ready", rank=rank))
            self._backlog[f"r{number}"] = key
            self._left[key] += 1
        for number in range(plan.timers):
            key, due = f"t{number % plan.tenants}", now + self.chance.uniform(0, plan.spread)
            put(f"w{number}", self._entry(f"w{number}", key, state="waiting", due=due))
            self._dues[f"w{number}"] = due

    def _entry(self, run_id: str, key: str, **facts: Any) -> QueueEntry:
        return QueueEntry(run_id=run_id, queue=_QUEUE, target=_CODE.target, key=key, **facts)

    @contextmanager
    def running(self) -> Any:
        """Have workers live in this world, and their runs be executed by `drive`."""
        module = "surehold.executors.worker"
        random.seed(self.plan.seed)
        with (
            self.world.is_the_clock(),
            patch(f"{module}.drive", self.drive),
            patch(f"{module}.has_progressed", self._has_progressed),
        ):
            for number in range(self.plan.workers):
                self.add_worker(f"host-{number}")
            yield
            self.world.end()

    def add_worker(self, name: str) -> None:
        """Start a worker on a node of its own."""
        node = Node(name)
        self.nodes.append(node)
        remote = Remote(self.database, node, self.plan.round_trip)
        worker = Worker(
            remote, [_CODE], concurrency=self.plan.concurrency, lease_seconds=self.plan.lease
        )
        worker._owner = Owner(name, "boot", 1, "1")
        worker._wake, worker._stopping, worker._ended = (Event(self.world) for _ in range(3))  # type: ignore[assignment]
        pool: Any = _Pool(self.world, node)
        later = self.chance.uniform(0, 1)  # they do not start in the same instant
        self.world.call_at(
            self.world.now + later,
            lambda _: self.world.spawn(node, lambda: worker._loop(pool, until_idle=False)),
        )
        self.world.spawn(node, worker._renew)

    @property
    def is_busy(self) -> bool:
        """True while runs are ready."""
        return self.database.table.states["ready"] > 0

    @property
    def ideal(self) -> float:
        """Steps a second if nothing but steps took time."""
        return self.plan.workers * self.plan.concurrency / self.plan.step_seconds

    def fairness(self) -> dict[str, float]:
        """Measure how evenly the runs of tenants with a backlog began in the first minute.

        Jain's index: 1 if each had as many, 1 / n if one of n had all. The first tenant has nine
        tenths of the backlog.
        """
        first = [self.first[f"t{number}"] for number in range(self.plan.tenants)]
        squares = sum(count * count for count in first)
        index = sum(first) ** 2 / (len(first) * squares) if squares else 0.0
        return {
            "index of fairness among tenants while all have a backlog": index,
            "share of the tenant with nine tenths of the backlog": first[0] / max(sum(first), 1),
        }

    def drive(self, run_id: str, *, storage: Remote, lease: Any, stop: Any, **_: Any) -> Driven:
        """Execute a run: what `surehold.executors.drive` does, with steps that only take time."""
        world, began = self.world, self.world.now
        outcome: Any = "completed"
        journal: Any = SimpleNamespace(
            storage=storage, reader=SimpleNamespace(held={}), invalidate=lambda _: None
        )
        held = RunLease(journal, run_id, now=world.time)
        with lease.used():
            held.acquire()
        try:
            at = storage.patiently("load", self.plan.costs.load, lambda: self.steps[run_id])
            while at < self.plan.steps:
                if stop.message is not None:
                    outcome = "interrupted"
                    break
                held.ensure()
                self._begin(run_id, at, lease.lease.epoch)
                world.sleep(self.chance.expovariate(1 / self.plan.step_seconds))
                self._executing[run_id] -= 1
                at += 1
                storage.commit(run_id, lease.lease.epoch, self._recording(run_id, at, lease))
        except ConflictError:
            outcome = "lost"
        finally:
            held.release()
        self.counts[f"attempts {outcome}"] += 1
        return Driven(run_id=run_id, outcome=outcome, seconds=world.now - began)

    def _begin(self, run_id: str, step: int, epoch: int) -> None:
        """Judge the beginning of a step."""
        self.counts["steps begun"] += 1
        self.counts["recorded steps begun again"] += step < self.steps[run_id]
        newest = self.database.table.lease(run_id)
        assert newest is not None
        is_stale = newest.epoch != epoch or newest.expires_at < self.world.now
        self.counts["steps begun without a lease"] += is_stale
        self.counts["steps begun beside another attempt"] += self._executing[run_id] > 0
        self._executing[run_id] += 1
        if step == 0 and self.steps[run_id] == 0:
            if (key := self._backlog.pop(run_id, None)) is not None:
                if all(self._left.values()):
                    self.first[key] += 1
                self._left[key] -= 1
            if (due := self._dues.pop(run_id, None)) is not None:
                self.late.append(self.world.now - due)

    def _recording(self, run_id: str, at: int, lease: Any) -> Callable[[], None]:
        def record() -> None:
            self.counts["steps recorded"] += at > self.steps[run_id]
            self.steps[run_id], self.progress[run_id] = at, lease.lease.epoch
            if at == self.plan.steps:
                self.database.table.put(run_id, None)
                self.counts["ended"] += 1
                self.ended[int(self.world.monotonic() // 10)] += 1

        return record

    def _has_progressed(self, storage: Any, lease: Any, began: Any = None) -> bool:
        return self.progress.get(lease.run_id) == lease.epoch


class _Pool(Executor):
    """Threads of a worker."""

    def __init__(self, world: World, node: Node) -> None:
        self._world, self._node = world, node

    def submit(self, work: Any, /, *values: Any, **_: Any) -> Any:
        self._world.spawn(self._node, lambda: work(*values))
