"""``start`` at every door: one run for one id or key, and the same refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.executors import jobs

from surehold import SQLiteStorage
from surehold.compat import StateManager
from surehold.errors import NotFoundError, UsageError
from surehold.executors import LocalExecutor, Worker, handle, queue_entries, served_by

HERE = "tests.executors.jobs"
Start = Callable[..., str]


def doors(storage: SQLiteStorage) -> dict[str, Start]:
    """Starts a run with an input and options, by what executes it; gives the run's id."""

    def graph(value: int, **options: Any) -> str:
        made = jobs.counting.over(StateManager(storage))
        return made.start_sync({"n": value}, entry_point=f"{HERE}:counting", **options).run_id

    async def graph_async(value: int, **options: Any) -> str:
        made = jobs.counting.over(StateManager(storage))
        return (await made.start({"n": value}, entry_point=f"{HERE}:counting", **options)).run_id

    async def agent(value: int, **options: Any) -> str:
        entry = f"{HERE}:make_agent"
        return (await jobs.make_agent().start(f"{value}", entry_point=entry, **options)).run_id

    async def fleet(value: int, **options: Any) -> str:
        entry = f"{HERE}:make_fleet"
        return (await jobs.make_fleet().start(f"{value}", entry_point=entry, **options)).run_id

    async def workflow_async(value: int, **options: Any) -> str:
        return (await jobs.doubled_async.start([value], storage=storage, **options)).run_id

    def awaited(start: Any) -> Start:
        return lambda *args, **options: asyncio.run(start(*args, **options))

    return {
        "workflow": lambda n, **options: jobs.doubled.start([n], storage=storage, **options).run_id,
        "async workflow": awaited(workflow_async),
        "graph": graph,
        "async graph": awaited(graph_async),
        "agent": awaited(agent),
        "fleet": awaited(fleet),
    }


@pytest.mark.parametrize(
    "door", ["workflow", "async workflow", "graph", "async graph", "agent", "fleet"]
)
def test_every_door_starts_in_the_same_way(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        monkeypatch.setitem(jobs.STORAGE, "here", storage)
        start = doors(storage)[door]
        first = start(1, idempotency_key="order-7", queue="mail", priority=3, key="t", delay=60)
        assert start(1, idempotency_key="order-7") == first
        assert start(1, run_id="named") == start(1, run_id="named") == "named"
        with pytest.raises(UsageError, match="begun with"):
            start(2, idempotency_key="order-7")
        with pytest.raises(UsageError, match="begun with"):
            start(2, run_id="named")
        for wrong in (
            {"delay": -1},
            {"delay": 1e12},
            {"priority": 0.5},
            {"queue": ""},
            {"key": 7},
        ):
            with pytest.raises(UsageError):
                start(1, **wrong)
        with pytest.raises(UsageError, match="give one of them"):
            start(1, run_id="named", idempotency_key="order-7")
        entries = {entry.run_id: entry for entry in queue_entries(storage=storage)}
        assert entries.keys() == {first, "named"}
        delayed = entries[first]
        assert (delayed.queue, delayed.priority, delayed.key) == ("mail", 3, "t")
        assert (delayed.state, entries["named"].state) == ("waiting", "ready")
        with pytest.raises(TimeoutError, match=r"is queued after 0 s .surehold worker MODULE"):
            handle("named", storage=storage).result(timeout=0)
        with LocalExecutor(storage, concurrency=1) as executor:
            assert executor.submit("named").result(60).outcome == "completed"
        again = handle("named", storage=storage)
        found: Any = again.result(timeout=0)
        assert again.status() == found.status == "completed"
        assert found.value is not None if "workflow" in door else found.state is not None
        assert start(1, run_id="named") == "named"
        assert [entry.run_id for entry in queue_entries(storage=storage)] == [first]


def test_an_id_that_something_else_has_is_refused(tmp_path: Path) -> None:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        jobs.doubled.start([1], run_id="taken", storage=storage)
        with pytest.raises(UsageError, match="is of 'doubled', not of 'counting'"):
            doors(storage)["graph"](1, run_id="taken")
        with pytest.raises(NotFoundError):
            handle("absent", storage=storage)


@pytest.mark.parametrize("flow", [jobs.keyed, jobs.keyed_async])
def test_options_leave_every_name_to_the_parameters(tmp_path: Path, flow: Any) -> None:
    def queued(made: Any) -> str:
        found = asyncio.run(made) if asyncio.iscoroutine(made) else made
        return str(found.run_id)

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        with pytest.raises(UsageError, match="parameter 'queue'") as refused:
            queued(flow.start("a", "b", storage=storage))
        assert f"{flow.name}.options(queue=...).start(...)" in str(refused.value.hint)
        mail = flow.options(queue="mail", run_id="one", priority=3, storage=storage)
        for _ in range(2):
            assert queued(mail.start("a", queue="b", delay=7)) == "one"
        (entry,) = queue_entries("mail", storage=storage)
        assert (entry.run_id, entry.priority, entry.due) == ("one", 3, None)
        with pytest.raises(UsageError, match="one"):
            queued(mail.start("a", queue="c"))
        with pytest.raises(UsageError, match="priority"):
            queued(flow.options(priority=1 << 40, storage=storage).start("a", "b"))
        Worker(storage, served_by([HERE]), queues=["mail"]).run(until_idle=True)
        assert handle("one", storage=storage).result(timeout=60).value == "a b 7"
