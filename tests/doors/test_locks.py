"""A lock is held by a run, over its waits and deaths, by one at a time and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, State, StateGraph, step, workflow
from surehold.errors import UsageError
from surehold.executors import Worker, cancel, handle

inside: list[str] = []
most: list[int] = []
guard = threading.Lock()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    inside.clear()
    most.clear()
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
def use(who: str) -> None:
    with guard:
        inside.append(who)
        most.append(len(inside))
    threading.Event().wait(0.005)
    with guard:
        inside.remove(who)


@workflow
def job(who: str, limit: int) -> str:
    with surehold.lock("press", limit=limit):
        use(who)
    return who


@workflow
def holding(who: str) -> str:
    with surehold.lock("press"):
        return f"{who} {surehold.receive('go')}"


@workflow
async def holding_awaited(who: str) -> str:
    async with surehold.lock("press"):
        return f"{who} {await surehold.receive('go')}"


def table(manager: CheckpointManager) -> dict[str, list[str]]:
    told = handle("lock-press", storage=manager).status_of()
    return {word: [run_id for run_id, _ in entries] for word, entries in told.items()}


@pytest.mark.parametrize("limit", [1, 2])
def test_at_most_so_many_runs_are_inside(manager: CheckpointManager, limit: int) -> None:
    names = [f"r{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        ends = [pool.submit(job.run, one, limit, run_id=one, storage=manager) for one in names]
        assert [end.result().value for end in ends] == names
    assert len(most) == 6 and max(most) <= limit
    assert table(manager) == {"holders": [], "waiting": []}


@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_a_run_that_waits_keeps_it_and_the_next_gets_it(
    manager: CheckpointManager, kind: str
) -> None:
    def run(who: str) -> Any:
        if kind == "plain":
            return holding.run(who, run_id=who, storage=manager, wait=False)
        return asyncio.run(holding_awaited.run(who, run_id=who, storage=manager, wait=False))

    assert {run(who).status for who in "abc"} == {"waiting"}
    for who in "abc":
        surehold.send(who, "go", "on", storage=manager)
    assert run("b").status == "waiting", "the lock is held by a"
    assert table(manager) == {"holders": ["a"], "waiting": ["b", "c"]}
    assert [run(who).value for who in "abc"] == ["a on", "b on", "c on"]
    assert table(manager) == {"holders": [], "waiting": []}


def test_cancelled_runs_let_go_and_wait_no_more(manager: CheckpointManager) -> None:
    for who in "abc":
        holding.run(who, run_id=who, storage=manager, wait=False)
    for who in "ba":
        cancel(who, storage=manager)
        assert holding.run(who, run_id=who, storage=manager, wait=False).status == "cancelled"
    assert table(manager) == {"holders": ["c"], "waiting": []}


def test_a_holder_that_is_gone_is_passed_over(manager: CheckpointManager) -> None:
    holding.run("a", run_id="a", storage=manager, wait=False)
    manager.storage.delete("a")
    assert holding.run("b", run_id="b", storage=manager, wait=False).status == "waiting"
    assert table(manager)["holders"] == ["b"]


def test_an_exception_lets_go(manager: CheckpointManager) -> None:
    @workflow
    def failing() -> None:
        with surehold.lock("press"):
            raise RuntimeError("no ink")

    with pytest.raises(RuntimeError):
        failing.run(run_id="a", storage=manager)
    assert table(manager) == {"holders": [], "waiting": []}


@pytest.mark.parametrize("kind", ["plain", "awaited", "gathered"])
def test_a_run_that_would_wait_for_itself_is_refused(manager: CheckpointManager, kind: str) -> None:
    @workflow(name="nested")
    def nested() -> None:
        with surehold.lock("press"), surehold.lock("press"):
            raise AssertionError

    @workflow(name="nested")
    async def nested_awaited() -> None:
        async with surehold.lock("press"):
            await (surehold.gather(again()) if kind == "gathered" else again())

    async def again() -> None:
        async with surehold.lock("press"):
            raise AssertionError

    with pytest.raises(UsageError, match="would wait for lock 'press'"):
        made: Any = nested if kind == "plain" else nested_awaited
        ended = made.run(run_id="a", storage=manager)
        asyncio.run(ended)
    assert table(manager) == {"holders": [], "waiting": []}


def test_branches_of_a_run_take_it_in_turn(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehold.doors.functions.locks._FIRST_LOOK", 3600.0)

    @workflow
    async def branches() -> list[str]:
        async def branch(name: str) -> str:
            async with surehold.lock("press"):
                return name

        return await surehold.gather(*map(branch, "abc"))

    assert asyncio.run(branches.run(run_id="a", storage=manager)).value == ["a", "b", "c"]


def test_workers_pass_it_on(manager: CheckpointManager) -> None:
    handles = [job.start(f"r{n}", 1, run_id=f"r{n}", storage=manager) for n in range(4)]
    worker = Worker.of_modules(manager.storage, [__name__], ["default"], 4, 30)
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        assert [one.result(60).value for one in handles] == [f"r{n}" for n in range(4)]
    finally:
        worker.stop()
        working.join()
    assert max(most) == 1


def test_loops_and_nodes_hold_it(manager: CheckpointManager) -> None:
    with surehold.run("loop", storage=manager) as run, surehold.lock("press"):
        run.checkpoint(n=1)
        assert table(manager)["holders"] == ["loop"]

    async def node(state: State) -> dict[str, Any]:
        async with surehold.lock("press"):
            return {"held": table(manager)["holders"]}

    graph = StateGraph("g", storage=manager.storage)
    graph.add_node("only", node)
    graph.set_entry_point("only")
    graph.set_exit_point("only")
    assert asyncio.run(graph.run({}, run_id="g")).state["held"] == ["g"]
    assert table(manager) == {"holders": [], "waiting": []}


def test_a_lock_needs_a_run_and_a_name() -> None:
    for wrong in ({"name": ""}, {"name": "x", "limit": 0}):
        with pytest.raises(UsageError):
            surehold.lock(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a run"), surehold.lock("x"):
        pass
