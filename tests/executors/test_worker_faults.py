"""Workers of one machine over a SQLite file: killed and frozen, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.crash.media import times
from tests.executors.fleet_of_workers import (
    Workers,
    submit,
    until_done,
    until_taken_over,
    until_told,
)

from surehold import SQLiteStorage

RUNS = times(6, 500)
PATIENCE = 600.0


def test_killed_and_frozen_workers_lose_and_repeat_nothing(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStorage(path) as storage:
        seeds = submit(storage, RUNS)
        workers = Workers(
            f"sqlite:///{path}", tmp_path / "log", number=2, lease=1.0, pause=0.05, concurrency=2
        )
        try:
            frozen = first_at_work(workers)
            held = workers.freeze(frozen)
            taken = held > 0 and until_taken_over(workers, frozen, 60)
            workers.wake(frozen)
            workers.kill(1 - frozen)
            until_done(storage, PATIENCE)
            workers.log.judge(storage, seeds)
            assert not taken or until_told(workers, "run.lost", 1, PATIENCE)
        finally:
            workers.close()
    finding("workers killed and frozen, sqlite", RUNS, "runs, 0 lost, 0 recorded steps repeated")


def first_at_work(workers: Workers) -> int:
    """The index of the worker that began a step first."""
    deadline = time.monotonic() + PATIENCE
    while not (lines := workers.log.lines()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [process.pid for process in workers.processes].index(lines[0].pid)
