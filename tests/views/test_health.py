"""The health of a storage costs what is wrong, not what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.executors import jobs

import surehold
from surehold import CheckpointManager, MemoryStorage, SQLiteStorage, State
from surehold.engine.runs import pending, status_of_run
from surehold.storage.base import RunQuery, Storage
from surehold.views.health import read_status, survey_health
from surehold.views.stats import read_stats

PORT = ("runs", "headers", "read", "head_and_newest", "lease_of", "entry_of", "notes", "count_runs")


def counted(kind: type[Storage], *given: Any) -> tuple[Storage, Counter[str]]:
    """A storage, and how often each of its methods was called from outside."""
    storage, calls = kind(*given), Counter[str]()

    def count(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return method(*args, **options)

        return call

    for name in PORT:
        setattr(storage, name, count(name, getattr(storage, name)))
    return storage, calls


def fill(storage: Storage, queued: int) -> None:
    """A run that failed, one that waits, one that is saved by hand; others queued and completed."""
    with pytest.raises(ZeroDivisionError), surehold.run("failed", storage=storage) as run:
        run.checkpoint(n=1 // 0)
    jobs.asks.run(run_id="waiting", storage=storage, wait=False)
    manager = CheckpointManager(storage)
    manager.save_checkpoint(State.new({"n": 1}, run_id="saved"))
    for number in range(queued):
        jobs.doubled.start([1], run_id=f"q{number}", storage=storage, delay=3600)
        ended = State.new({"n": 1}, run_id=f"c{number}").at(status="completed")
        manager.save_checkpoint(ended)


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    names = iter(("few.db", "many.db"))
    if request.param == "memory":
        return lambda: counted(MemoryStorage)
    return lambda: counted(SQLiteStorage, tmp_path / next(names))


def test_status_health_pending_and_stats_ask_no_more_of_many_runs(
    opened: Callable[[], tuple[Storage, Counter[str]]],
) -> None:
    asked = []
    for queued in (40, 200):
        storage, calls = opened()
        with storage:
            fill(storage, queued)
            manager = CheckpointManager(storage)
            shown = Counter(status_of_run(storage, run) for run in storage.runs(RunQuery()))
            figures: list[int] = []
            looks: list[Callable[[CheckpointManager], Any]] = [
                lambda manager: read_status(manager, "memory://", {}),
                survey_health,
                lambda manager: pending(storage=manager),
                lambda manager: read_stats(manager, "memory://", limit=20),
            ]
            for look in looks:
                calls.clear()
                look(manager)
                figures.append(calls.total())
            asked.append(figures)
            document = read_status(manager, "memory://", {})
            assert document.runs == dict(shown) == survey_health(manager).counts
            assert shown["queued"] == queued and document.pending == 1
            assert [one.kind for one in document.problems] == ["failed"]
            stats = read_stats(manager, "memory://", limit=20)
            assert (stats.runs, stats.counted) == (2 * queued + 3, 20)
            assert [one.run_id for one in pending(storage=manager, limit=1)] == ["waiting"]
    few, many = asked
    assert many == few


def test_stale_runs_beyond_those_looked_at_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surehold.views.health._LOOKED_AT", 2)
    monkeypatch.setattr("surehold.views.health._NEWEST", 1)
    with MemoryStorage() as storage:
        manager = CheckpointManager(storage)
        for number in range(5):
            run_id = f"r{number}"
            with surehold.run(run_id, storage=storage) as run:
                run.checkpoint(n=1)
            manager.delete_checkpoint(manager.latest(run_id).checkpoint_id)
        document = read_status(manager, "memory://", {})
        assert document.runs == {"stale": 5}
        told = [(one.kind, one.run_id, one.help) for one in document.problems]
        assert [run_id for _, run_id, _ in told] == ["r4", "r3", ""]
        assert told[-1] == ("stale", "", "surehold runs --status stale")
