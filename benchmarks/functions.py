"""Cost of a step of a durable function beside a bare commit and DBOS, and of a resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import surehold
from benchmarks.peers import MISSING
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, settings_of, text_of
from surehold import CheckpointManager, SQLiteStorage

__all__ = ["measure", "resume_ratio"]

_STEPS = 300
_RECORDED = 1000
_ROUNDS = 5


def measure(directory: Path) -> Iterator[Line]:
    """Time steps in turns with bare commits of the same bytes, and resumes of recorded steps."""
    for policy, limit in (("retry", 2.0), ("ask", None)):
        times = _ours(directory / f"{policy}.db", policy)
        what = f"step of a workflow, in_doubt={policy!r} / bare commit"
        yield Line(what, times.ratio("step", "bare"), limit, note=_said(times))
    small, large = resume_ratio(directory / "small.db"), resume_ratio(directory / "large.db", 3)
    yield Line(f"resume of {_RECORDED:,} recorded steps / reading their records", small, 3)
    yield Line(f"resume of {3 * _RECORDED:,} recorded steps / reading their records", large, 3)
    yield _dbos(directory)  # last: its threads stay


def _in_turns(bare: BareCommits, times: Times, step: Callable[[int], Any]) -> None:
    body = text_of(
        {"id": "work@100", "name": "work", "key": "k" * 32, "args": "d" * 32, "value": 1}
    )
    for number in range(_STEPS):
        times.time("step", lambda number=number: step(number))  # type: ignore[misc]
        times.time("bare", lambda: bare.commit(body))


def _ours(path: Path, policy: Any) -> Times:
    times = Times()

    @surehold.step(in_doubt=policy)
    def work(number: int) -> int:
        return number

    with SQLiteStorage(path) as storage:
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))

        @surehold.workflow(name=f"bench {policy}")
        def many() -> None:
            _in_turns(bare, times, work)

        many.run(run_id="bench", storage=storage)
        bare.close()
    return times


def _said(times: Times) -> str:
    step, bare = times.median("step") * 1e3, times.median("bare") * 1e3
    return f"{step:.3f} ms, a bare commit {bare:.3f} ms"


def _dbos(directory: Path) -> Line:
    """DBOS's step on SQLite as a multiple of a bare commit, in turns with it."""
    what = "step of a DBOS workflow on SQLite / bare commit"
    try:
        from dbos import DBOS
    except ImportError:
        return Line(what, None, note=f"DBOS is {MISSING}")
    times = Times()
    config: Any = {
        "name": "bench",
        "system_database_url": f"sqlite:///{directory}/dbos.db",
        "run_admin_server": False,
        "log_level": "ERROR",
    }
    DBOS(config=config)

    @DBOS.step()
    def work(number: int) -> int:
        return number

    with SQLiteStorage(directory / "settings.db") as storage:
        bare = BareCommits(directory / "dbos.bare", settings_of(storage))

    @DBOS.workflow()
    def many() -> None:
        _in_turns(bare, times, work)

    DBOS.launch()
    try:
        many()
    finally:
        DBOS.destroy()
        bare.close()
    return Line(what, times.ratio("step", "bare"), note=_said(times))


def resume_ratio(path: Path, factor: int = 1) -> float:
    """Time until recorded steps are replayed, divided by the time to read their records."""
    replayed: list[float] = []

    @surehold.step(in_doubt="retry")
    def work(number: int) -> int:
        return number

    @surehold.workflow(name="bench resume")
    def many(count: int) -> None:
        for number in range(count):
            work(number)
        replayed.append(time.perf_counter())
        surehold.wait_for("the end")

    times = Times()
    taken: list[float] = []
    with CheckpointManager(f"sqlite:///{path}") as manager:
        for _ in range(_ROUNDS + 1):
            started = time.perf_counter()
            many.run(factor * _RECORDED, run_id="bench", storage=manager, wait=False)
            taken.append(replayed[-1] - started)
            times.time("read", lambda: [*manager.storage.read("bench")])
    return min(taken[1:]) / min(times.taken["read"])  # whatever else runs only adds to both
