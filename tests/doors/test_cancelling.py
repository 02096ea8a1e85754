"""A run that is asked to end is told once, cleans up, and ends cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import call, turns

import surehold
from surehold import Agent, CheckpointManager, State, StateGraph, step, tool, workflow
from surehold.errors import Cancelled, NotFoundError, RunError, UsageError
from surehold.executors import Worker, cancel, handle
from surehold.executors.serving import served_by
from surehold.testing.scripted import ScriptedModel

done: list[str] = []
reached = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()
    reached.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
def act(name: str) -> str:
    done.append(name)
    if name == "work 3":
        reached.set()
    time.sleep(0.01)
    return name


@step
async def do(name: str) -> str:
    done.append(name)
    await asyncio.sleep(0)
    return name


@workflow
def job(steps: int = 100_000) -> str:
    try:
        for number in range(steps):
            act(f"work {number}")
        return "all"
    finally:
        act("clean up")
        act("release")


@workflow
def waits(what: str) -> Any:
    act("begin")
    try:
        if what == "sleep":
            return surehold.sleep(3600)
        return surehold.wait_for("x") if what == "event" else surehold.receive("x")
    except Cancelled:
        act("clean up")
        raise


def cancelled_when_reached(manager: CheckpointManager, run_id: str, **options: Any) -> Any:
    def ask() -> None:
        assert reached.wait(300)
        handle(run_id, storage=manager.storage).cancel(**options)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_a_run_in_the_foreground_cleans_up_and_ends_cancelled(manager: CheckpointManager) -> None:
    asking = cancelled_when_reached(manager, "one")
    result = job.run(run_id="one", storage=manager)
    asking.join()
    assert (result.status, result.returned) == ("cancelled", None)
    assert 4 <= len(done) < 100_000
    assert done[-2:] == ["clean up", "release"]
    assert done.count("clean up") == 1
    again = job.run(run_id="one", storage=manager)
    assert again.status == "cancelled"
    assert done.count("clean up") == 1
    with pytest.raises(RunError, match="was cancelled"):
        handle("one", storage=manager).result(0)
    assert handle("one", storage=manager).status() == "cancelled"
    assert surehold.pending(storage=manager) == []


def test_a_run_in_a_worker_cleans_up_and_ends_cancelled(manager: CheckpointManager) -> None:
    asked = job.start(run_id="two", storage=manager)
    asking = cancelled_when_reached(manager, "two")
    Worker(manager.storage, served_by([f"{__name__}:job"])).run(until_idle=True)
    asking.join()
    assert asked.status() == "cancelled"
    assert done[-2:] == ["clean up", "release"]
    assert manager.storage.entry_of("two") is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["sleep", "event", "message"])
@pytest.mark.parametrize("where", ["worker", "later", "here"])
def test_a_run_that_waits_is_told(manager: CheckpointManager, what: str, where: str) -> None:
    worker = Worker(manager.storage, served_by([f"{__name__}:waits"]))
    if where == "worker":
        waits.start(what, run_id="w", storage=manager)
        worker.run(until_idle=True)
    elif where == "later":
        waits.run(what, run_id="w", storage=manager, wait=False)
    if where == "here":
        thread = threading.Thread(target=lambda: waits.run(what, run_id="w", storage=manager))
        thread.start()
        until = time.monotonic() + 300
        while not surehold.pending("w", storage=manager) if done else True:
            assert time.monotonic() < until
            time.sleep(0.02)
            if what == "sleep" and done:
                break
    cancel("w", storage=manager)
    if where == "worker":
        worker.run(until_idle=True)
    elif where == "later":
        assert waits.resume("w", storage=manager, wait=False).status == "cancelled"
    else:
        thread.join(300)
    assert handle("w", storage=manager).status() == "cancelled"
    assert done == ["begin", "clean up"]


def test_a_queued_run_that_is_cancelled_executes_nothing(manager: CheckpointManager) -> None:
    asked = job.start(run_id="q", storage=manager)
    asked.cancel(by="Ann")
    Worker(manager.storage, served_by([f"{__name__}:job"])).run(until_idle=True)
    assert asked.status() == "cancelled"
    assert done == []


def test_a_cleanup_is_replayed_after_a_failure(manager: CheckpointManager) -> None:
    broken = [True]

    @workflow
    def fails() -> None:
        try:
            act("begin")
            surehold.receive("x")
        except Cancelled:
            act("clean up")
            if broken:
                raise RuntimeError("not yet") from None
            act("release")
            raise

    fails.run(run_id="f", storage=manager, wait=False)
    cancel("f", storage=manager)
    with pytest.raises(RuntimeError):
        fails.resume("f", storage=manager, wait=False)
    broken.clear()
    assert fails.resume("f", storage=manager, wait=False).status == "cancelled"
    assert done == ["begin", "clean up", "release"]


def test_a_cleanup_has_a_time_limit(manager: CheckpointManager) -> None:
    asking = cancelled_when_reached(manager, "long", cleanup=0.1)

    @workflow
    def stays() -> None:
        try:
            for number in range(2000):
                act(f"work {number}")
        finally:
            for number in range(2000):
                act(f"clean up {number}")

    result = stays.run(run_id="long", storage=manager)
    asking.join()
    assert result.status == "cancelled"
    assert 1 <= sum(name.startswith("clean up") for name in done) < 100


async def test_all_branches_are_told_and_the_body_cleans_up(manager: CheckpointManager) -> None:
    told: list[str] = []

    async def branch(name: str) -> None:
        try:
            for number in range(2000):
                await do(f"{name} {number}")
                if number == 3 and name == "a":
                    await asyncio.to_thread(cancel, "g", storage=manager)
        except Cancelled:
            told.append(name)
            await do(f"clean up {name}")
            raise

    @workflow
    async def both() -> None:
        try:
            await surehold.gather(branch("a"), branch("b"))
        finally:
            await surehold.gather(do("clean up"), do("release"))

    result = await both.run(run_id="g", storage=manager)
    assert result.status == "cancelled"
    assert sorted(told) == ["a", "b"]
    assert {"clean up a", "clean up b", "clean up", "release"} <= set(done)
    assert len(done) < 500


async def test_a_child_and_a_race_are_told(manager: CheckpointManager) -> None:
    @workflow
    async def child() -> None:
        try:
            await surehold.race(surehold.receive("never"), surehold.sleep(3600))
        finally:
            await do("clean up child")

    @workflow
    async def parent() -> None:
        try:
            await child()
        finally:
            await do("clean up parent")

    assert (await parent.run(run_id="p", storage=manager, wait=False)).status == "waiting"
    await asyncio.to_thread(cancel, "p", storage=manager)
    assert (await parent.resume("p", storage=manager, wait=False)).status == "cancelled"
    assert done == ["clean up child", "clean up parent"]


def test_a_run_that_goes_on_completes(manager: CheckpointManager) -> None:
    @workflow
    def stubborn() -> str:
        try:
            return str(surehold.receive("x"))
        except Cancelled:
            return act("done anyway")

    stubborn.run(run_id="s", storage=manager, wait=False)
    cancel("s", storage=manager)
    assert stubborn.resume("s", storage=manager).value == "done anyway"
    cancel("s", storage=manager)
    assert handle("s", storage=manager).status() == "completed"


def test_a_loop_is_told_at_its_next_call(manager: CheckpointManager) -> None:
    asking = cancelled_when_reached(manager, "loop")
    with pytest.raises(Cancelled), surehold.run("loop", storage=manager) as run:
        try:
            for number in run.each(range(2000)):
                run.call(act, f"work {number}")
        finally:
            run.call(act, "clean up")
    asking.join()
    assert handle("loop", storage=manager).status() == "cancelled"
    assert done[-1] == "clean up"
    assert len(done) < 500
    with pytest.raises(Cancelled), surehold.run("loop", storage=manager):
        done.append("never")
    assert done[-1] == "clean up"


def test_wrong_requests_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(NotFoundError):
        cancel("gone", storage=manager)
    with pytest.raises(UsageError, match="cleanup"):
        cancel("gone", cleanup=0, storage=manager)


@pytest.mark.parametrize("kind", ["graph", "agent"])
async def test_a_graph_and_an_agent_stop_after_the_node_in_progress(
    manager: CheckpointManager, kind: str
) -> None:
    async def work(number: int) -> str:
        """Do some work."""
        done.append(f"work {number}")
        if number == 1:
            await asyncio.to_thread(handle("r", storage=manager).cancel)
        return "done"

    runs: Any
    if kind == "agent":
        model = ScriptedModel(turns(*(call("work", number=number) for number in range(4)), "done"))
        runs = Agent("worker", model=model, tools=[tool(work)], storage=manager.storage)
    else:
        runs = StateGraph("worker", storage=manager.storage)
        for number in range(4):
            runs.add_node(f"n{number}", partial(_node, work, number))
            if number:
                runs.add_edge(f"n{number - 1}", f"n{number}")
        runs.set_entry_point("n0")
        runs.set_exit_point("n3")
    result = await runs.run("go" if kind == "agent" else {}, run_id="r")
    assert (result.status, done) == ("interrupted", ["work 0", "work 1"])
    with pytest.raises(RunError, match="was cancelled"):
        await asyncio.to_thread(handle("r", storage=manager).result, 0)
    result = await runs.resume("r")
    assert (result.status, done) == ("completed", [f"work {number}" for number in range(4)])


async def _node(work: Any, number: int, state: State) -> dict[str, Any]:
    return {"said": await work(number)}
