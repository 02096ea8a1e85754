"""Worker processes over PostgreSQL and Valkey under faults, judged by a synced log outside.

Workers are killed one by one and all at once, frozen for longer than their leases and woken, and
the server is killed and started again. No run is lost, no step is left out, epochs never fall, and
no step is executed again that is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import times
from tests.executors.fleet_of_workers import (
    Workers,
    chance,
    submit,
    until_done,
    until_taken_over,
    until_told,
)
from tests.servers import Postgres, Redis

from surehold.storage.queueing import Queueing

RUNS = times(40, 2_000, "SUREHOLD_WORKER_RUNS")
FAULTS = times(2, 12)
LEASE = 3.0
PATIENCE = 1800.0


@pytest.mark.timeout(3600)
def test_workers_lose_and_repeat_nothing(
    tmp_path: Path, own_server: Postgres | Redis, open_on: Callable[..., Any]
) -> None:
    server, picks = own_server, chance(18)
    address = f"{server.url}{'&' if '?' in server.url else '?'}patience=60"
    with open_on(server, server.url) as storage:
        seeds = submit(storage, RUNS)
        workers = Workers(address, tmp_path / "log", number=4, lease=LEASE, pause=0.05)
        try:
            until_begun(workers)
            frozen = False
            for number in range(FAULTS):
                until_left(storage, RUNS * (1 - number / (FAULTS + 1)))
                frozen = freeze(workers, picks.randrange(4)) or frozen
                workers.kill(picks.randrange(4))
                if number % 2:
                    workers.log.note_fault(one.pid for one in workers.processes)
                    server.kill()
                if number % 3 == 2:
                    workers.kill(0, 1, 2, 3)
                time.sleep(picks.uniform(0.5, 2.0))
            until_done(storage, PATIENCE)
            verdict = workers.log.judge(storage, seeds)
            fenced = workers.told("run.lost")
        finally:
            workers.close()
        print(f"\n{verdict}; {fenced} drives were fenced")
        assert verdict.runs == RUNS
        assert not frozen or fenced >= 1


def until_begun(workers: Workers) -> None:
    deadline = time.monotonic() + 120
    while len({line.pid for line in workers.log.lines()}) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_left(storage: Queueing, number: float) -> None:
    """Wait until at most so many runs are not completed, so that faults come throughout."""
    deadline = time.monotonic() + PATIENCE
    while sum(info.ready + info.running for info in storage.queues()) > number:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def freeze(workers: Workers, index: int) -> bool:
    """Freeze a worker until its lease has ended and another has its runs, then wake it.

    It is left the time to tell that it lost them, so that it is not killed before.
    """
    fenced = workers.told("run.lost")
    held = workers.freeze(index)
    try:
        taken = held > 0 and until_taken_over(workers, index, 60)
    finally:
        workers.wake(index)
    if taken:
        until_told(workers, "run.lost", fenced + 1, 60)
    return taken
