"""`drive` and `LocalExecutor`: runs that were begun with ``start`` and are executed elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.executors import jobs

from surehold import CheckpointManager, RunQuery, SQLiteStorage
from surehold.engine.runs import StopScope
from surehold.errors import UsageError
from surehold.executors import Driven, LocalExecutor, Served, drive, served_by
from surehold.storage.base import Leasing, this_process
from surehold.storage.queueing import EntryQuery


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SQLiteStorage]:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        yield storage


def test_start_executes_nothing_and_drive_completes_it(storage: SQLiteStorage) -> None:
    handle = jobs.doubled.start([1, 2], run_id="a", storage=storage)
    assert handle.status() == "queued"
    assert [header.kind for header in storage_headers(storage, "a")] == ["queued", "routine"]
    assert drive("a", storage=storage).outcome == "completed"
    assert handle.result(timeout=0).value == [2, 4]
    assert drive("a", storage=storage).outcome == "completed"


def storage_headers(storage: SQLiteStorage, run_id: str) -> list[object]:
    from surehold import RecordQuery

    return [*storage.headers(RecordQuery(run_id=run_id, notes=True))]


def test_start_again_gives_the_same_run(storage: SQLiteStorage) -> None:
    first = jobs.doubled.start([1], idempotency_key="order-7", storage=storage)
    again = jobs.doubled.start([1], idempotency_key="order-7", storage=storage)
    assert first.run_id == again.run_id
    with pytest.raises(UsageError, match="other arguments"):
        jobs.doubled.start([2], idempotency_key="order-7", storage=storage)


def test_a_run_that_no_process_could_find_is_refused(storage: SQLiteStorage) -> None:
    import surehold

    @surehold.workflow
    def inner() -> None: ...

    with pytest.raises(UsageError, match="no worker could find it"):
        inner.start(storage=storage)


def test_an_unknown_run_is_unfit(storage: SQLiteStorage) -> None:
    driven = drive("nobody", storage=storage)
    assert driven.outcome == "unfit" and driven.error.startswith("no run 'nobody' to drive")


def test_an_encrypted_run_without_its_key_is_unfit(storage: SQLiteStorage) -> None:
    with CheckpointManager(storage, encryption_key="7" * 64) as manager:
        jobs.doubled.start([1], run_id="a", storage=manager)
    driven = drive("a", storage=storage)
    assert driven.outcome == "unfit" and "encrypted" in driven.error


def test_drive_of_a_held_run_does_nothing(storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], run_id="a", storage=storage)
    assert isinstance(storage, Leasing)
    lease = storage.take_lease("a", this_process(), now=0.0, ttl=1e12)
    assert drive("a", storage=storage).outcome == "held"
    storage.release_lease(lease)
    assert drive("a", storage=storage).outcome == "completed"


def test_drive_frees_the_process_of_a_run_that_waits(storage: SQLiteStorage) -> None:
    jobs.rests.start(3600, run_id="sleeper", storage=storage)
    driven = drive("sleeper", storage=storage)
    assert driven.outcome == "waiting"
    assert driven.due is not None
    handle = jobs.asks.start(run_id="asker", storage=storage)
    driven = drive("asker", storage=storage)
    assert (driven.outcome, driven.due) == ("waiting", None)
    handle.answer("approval", "yes")
    assert drive("asker", storage=storage).outcome == "completed"
    assert handle.result(timeout=0).value == "yes"


def test_a_run_that_has_slept_and_asks_is_not_due(storage: SQLiteStorage) -> None:
    jobs.rests_and_asks.start(0.01, run_id="a", storage=storage)
    for _ in range(2):
        driven = drive("a", storage=storage)
        assert (driven.outcome, driven.due) == ("waiting", None)


def test_a_question_with_a_timeout_is_due_then(storage: SQLiteStorage) -> None:
    from surehold.compat import StateManager

    graph = jobs.asking.over(StateManager(storage))
    handle = graph.start_sync({}, run_id="a", entry_point="tests.executors.jobs:asking")
    with LocalExecutor(storage) as executor:
        executor.submit("a")
        assert handle.result(timeout=30).state["answer"] == "none"


def test_drive_tells_failures_apart(storage: SQLiteStorage) -> None:
    jobs.fails.start(run_id="bad", storage=storage)
    driven = drive("bad", storage=storage)
    assert driven.outcome == "failed"
    assert "no luck" in driven.error


def test_a_stopped_run_is_interrupted_and_continues(storage: SQLiteStorage) -> None:
    jobs.doubled.start([1, 2], run_id="a", storage=storage)
    scope = StopScope()
    scope.stop("a deploy")
    assert drive("a", storage=storage, stop=scope).outcome == "interrupted"
    assert drive("a", storage=storage).outcome == "completed"


def test_local_executor_drives_async_workflows_and_timers(storage: SQLiteStorage) -> None:
    import asyncio

    handle = asyncio.run(jobs.doubled_async.start([-1, -2], storage=storage))
    sleeper = jobs.rests.start(1.1, run_id="sleeper", storage=storage)
    with LocalExecutor(storage, concurrency=2) as executor:
        executor.submit(handle.run_id)
        executor.submit("sleeper")
        assert asyncio.run(handle.result(timeout=30)).value == [1, 2]
        assert sleeper.result(timeout=30).value == "rested"


def test_a_run_submitted_while_its_drive_ends_is_driven_again(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, answered = threading.Event(), threading.Event()

    def slow_to_end(run_id: str, **options: Any) -> Driven:
        driven = drive(run_id, **options)
        if driven.outcome == "waiting":
            waits.set()
            assert answered.wait(30)
        return driven

    monkeypatch.setattr("surehold.executors.local.drive", slow_to_end)
    handle = jobs.asks.start(run_id="asker", storage=storage)
    with LocalExecutor(storage, concurrency=2) as executor:
        executor.submit("asker")
        assert waits.wait(30)
        handle.answer("approval", "yes")
        assert executor.submit("asker").result(30).outcome == "held"
        answered.set()
        assert handle.result(timeout=30).value == "yes"


def test_a_graph_is_started_and_driven(tmp_path: Path) -> None:
    from surehold.compat import StateManager

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        graph = jobs.counting.over(StateManager(storage))
        handle = graph.start_sync({"n": 0}, run_id="g", entry_point="tests.executors.jobs:counting")
        assert drive("g", storage=storage).outcome == "completed"
        assert handle.result(timeout=0).state["n"] == 3


def test_a_medium_without_queues_says_which_has_them(tmp_path: Path) -> None:
    from surehold import FilesystemStorage

    storage = FilesystemStorage(tmp_path / "runs")
    with pytest.raises(UsageError, match=r"keeps no queues.*PostgreSQL"):
        jobs.doubled.start([1], storage=storage)


def test_an_agent_and_a_fleet_are_started_and_driven(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setitem(jobs.STORAGE, "here", storage)
    here = "tests.executors.jobs"

    async def start() -> None:
        agent = await jobs.make_agent().start("?", run_id="a", entry_point=f"{here}:make_agent")
        fleet = await jobs.make_fleet().start("?", run_id="f", entry_point=f"{here}:make_fleet")
        assert [await agent.status(), await fleet.status()] == ["queued", "queued"]

    asyncio.run(start())
    assert drive("a", storage=storage).outcome == "completed"
    assert drive("f", storage=storage).outcome == "completed"
    assert {run.run_id: run.status for run in storage.runs(RunQuery())} == {
        "a": "completed",
        "f": "completed",
    }
    assert served_by([f"{here}:make_agent", f"{here}:make_fleet"]) == [
        Served(f"{here}:make_agent", 0),
        Served(f"{here}:make_fleet", 0),
    ]
    assert {entry.target for entry in storage.entries(EntryQuery())} == set()
