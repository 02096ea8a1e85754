"""Measures the processor time that each call costs a PostgreSQL server.

    python -m proof.simulation.costs

Prints the milliseconds that `Costs` has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from benchmarks.worker_jobs import STEPS, no_op, sleeper
from tests.servers import Postgres

from surehold.core.policy import QueueSettings, after_drive
from surehold.executors import Worker, served_by
from surehold.storage.base import this_process
from surehold.storage.postgres import PostgresStorage
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, WorkerInfo

_CALLS = 300
_RUNS = 2000
_EXECUTED = 100
_AT_ONCE = 8
_JOBS = "benchmarks.worker_jobs"


class Meter:
    """The processor time of a server's backends for its clients."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True)

    def of(self, work: Callable[[], Any], times: int = 1) -> float:
        """The milliseconds that the server spends in each of so many calls."""
        before = self._used()
        for _ in range(times):
            work()
        after = self._used()
        return (sum(after.values()) - sum(before[pid] for pid in after if pid in before)) / times

    def _used(self) -> dict[int, float]:
        sql = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        pids = [int(pid) for (pid,) in self._db.execute(sql)]
        return {
            pid: int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6 for pid in pids
        }


def measure(url: str) -> dict[str, float]:
    """Measure on a server."""
    meter, found = Meter(url), dict[str, float]()
    with PostgresStorage(url, schema="costs", pool=2) as storage:
        owner, now = this_process(), time.time()

        def query(limit: int, job: Any = no_op) -> ClaimQuery:
            target = f"{_JOBS}:{job.name}@1"
            return ClaimQuery(queues=("default",), targets=(target,), limit=limit)

        for _ in range(_EXECUTED):
            no_op.start(storage=storage)
        worked = Worker(storage, served_by([_JOBS]), concurrency=1)
        whole = meter.of(lambda: worked.run(until_idle=True)) / _EXECUTED
        for _ in range(_RUNS):
            no_op.start(storage=storage)
        worker = WorkerInfo(
            id="w", owner=owner, queues=("default",), targets=(), concurrency=8, since=now
        )
        found["announce"] = meter.of(lambda: storage.announce(worker, now=now, ttl=60), _CALLS)
        found["sweep"] = meter.of(lambda: storage.stale_claims(now=now, host="x"), _CALLS)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("ANALYZE costs.runs")
        claims: list[Claim] = []

        def claim(limit: int) -> None:
            claims.extend(storage.claim(query(limit), owner, now=now, ttl=3600))

        one, several = (meter.of(partial(claim, limit), 100) for limit in (1, _AT_ONCE))
        found["claimed"] = (several - one) / (_AT_ONCE - 1)
        found["claim"] = one - found["claimed"]
        leases = [held.lease for held in claims]

        def renew(count: int) -> float:
            some = leases[:count]
            return meter.of(lambda: storage.renew_claims(some, now=now, ttl=3600), _CALLS)

        one, several = renew(1), renew(_AT_ONCE)
        found["renewed"] = (several - one) / (_AT_ONCE - 1)
        found["renew"] = one - found["renewed"]
        ours = tuple(lease.run_id for lease in leases[:_AT_ONCE])
        own = EntryQuery(state="running", cancelled=True, run_ids=ours)
        every = EntryQuery(state="running", cancelled=True)
        found["cancelled"] = meter.of(lambda: [*storage.entries(own)], _CALLS)
        swept = meter.of(lambda: storage.stale_claims(now=now, host="x"), _CALLS)
        found["swept"] = (swept - found["sweep"]) / len(leases)
        found["every cancelled"] = meter.of(lambda: [*storage.entries(every)], _CALLS)
        found["every swept"] = meter.of(lambda: storage.stale_claims(now=now), 50) / len(leases)
        waits = iter(claims)

        def settle() -> None:
            held = next(waits)
            after = after_drive(held.entry, "waiting", QueueSettings(), now=now, due=now + 9999)
            storage.settle(held.lease, after, now=now)

        found["settle"] = meter.of(settle, _CALLS)
        idle = query(1, sleeper)
        found["look"] = meter.of(lambda: storage.idle_for(idle, now=now), _CALLS)
    once = found["claim"] + found["claimed"] + found["settle"] + found["look"]
    found["step"] = (whole - once) / (STEPS + 2)
    found["load"] = found["step"]
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o755)
        server = Postgres(directory / "pg").start()
        try:
            for name, milliseconds in measure(server.url).items():
                print(f"{name:16} {milliseconds:.4f}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
