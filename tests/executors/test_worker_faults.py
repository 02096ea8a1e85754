"""Workers of one machine over a SQLite file: killed and frozen, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from tests.crash.media import times
from tests.executors.fleet_of_workers import Workers, submit, until_done, until_taken_over

from holdfast import SQLiteStorage

RUNS = times(6, 500)
PATIENCE = 600.0


def test_killed_and_frozen_workers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with SQLiteStorage(path) as storage:
        seeds = submit(storage, RUNS)
        workers = Workers(
            f"sqlite:///{path}", tmp_path / "log", number=2, lease=1.0, pause=0.05, concurrency=2
        )
        try:
            frozen = next(index for index in iter(lambda: begun(workers), None) if index >= 0)
            held = workers.freeze(frozen)
            taken = held > 0 and until_taken_over(workers, frozen, 60)
            workers.wake(frozen)
            workers.kill(1 - frozen)
            until_done(storage, PATIENCE)
            workers.log.judge(storage, seeds)
            assert not taken or workers.told("run.lost") >= 1
        finally:
            workers.close()


def begun(workers: Workers) -> int:
    """The index of a worker that has begun a step; -1 if none has."""
    pids = [process.pid for process in workers.processes]
    lines = workers.log.lines()
    return pids.index(lines[-1].pid) if lines else -1
