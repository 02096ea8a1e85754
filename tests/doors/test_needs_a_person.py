"""A run that needs a person, or has failed, is never silent: a line says so, its value raises."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import call, turns
from tests.builders.counting import Counting
from tests.builders.fleets import manager, team

import surehold
from surehold import Agent, Fleet, StateGraph, step, tool, workflow
from surehold.errors import InDoubtError, Interrupted, NotFoundError, RunError, ShapeError
from surehold.executors import drive
from surehold.testing.scripted import ScriptedModel


class Killed(BaseException):
    """Stands for a kill: nothing is saved."""


Start = Callable[[Counting], Any]
"""Starts the run "r", which asks "well?"; gives its result, if there is one."""


def loop(storage: Counting) -> Any:
    async def main() -> None:
        with suppress(Interrupted):
            async with surehold.run("r", storage=storage):
                await surehold.interrupt("well?")

    asyncio.run(main())


def loop_in_doubt(storage: Counting) -> Any:
    def dies() -> None:
        raise InDoubtError("the connection broke")

    with suppress(Interrupted, InDoubtError), surehold.run("r", storage=storage) as run:
        run.effect("well?", dies)


@workflow(name="asks")
async def asks() -> bool:
    return await surehold.interrupt("well?", schema=bool)


def function(storage: Counting) -> Any:
    return asyncio.run(asks.run(run_id="r", storage=storage))


def plain_function(storage: Counting) -> Any:
    @step(in_doubt="ask", name="well?")
    def dies() -> None:
        raise Killed

    @workflow(name="waits")
    def waits() -> Any:
        dies()

    with suppress(Killed):
        return waits.run(run_id="r", storage=storage, wait=False)


def graph(storage: Counting) -> Any:
    async def node(state: Any) -> None:
        await surehold.interrupt("well?")

    made = StateGraph("g", storage=storage)
    made.add_node("node", node)
    made.set_entry_point("node")
    made.set_exit_point("node")
    return asyncio.run(made.run(run_id="r"))


def agent(storage: Counting) -> Any:
    @tool(read_only=True)
    async def look(query: str) -> str:
        """Look."""
        return str(await surehold.interrupt("well?"))

    model = ScriptedModel(turns(call("look", query="a"), "done"))
    made = Agent("a", model=model, tools=[look], storage=storage, report=lambda line: None)
    return asyncio.run(made.run("task", run_id="r"))


def fleet(storage: Counting) -> Any:
    async def speak(instruction: str) -> str:
        return str(await surehold.interrupt("well?"))

    async def main() -> Any:
        async with Fleet(manager(1), dict.fromkeys(team(), speak), storage=storage) as made:
            return await made.run("task", run_id="r")

    return asyncio.run(main())


DOORS = [loop, loop_in_doubt, function, plain_function, graph, agent, fleet]


@pytest.mark.parametrize("start", DOORS)
def test_each_start_of_a_run_that_waits_says_so_in_one_line(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Counting()
    if start in (loop_in_doubt, plain_function):
        start(storage)  # fails, and leaves its call in doubt
    for _ in range(3):
        caplog.clear()
        result = start(storage)
        (line,) = [one.getMessage() for one in caplog.records if one.name == "surehold.run"]
        assert line.startswith("run r waits: ") and line.endswith(" (surehold pending r)")
        assert "well" in line
    if result is not None:
        with pytest.raises(RunError, match=r"run 'r' has no value: it is waiting for .*pending r"):
            _ = result.value
        assert result.returned is None
    assert surehold.pending("r", storage=storage)


def test_a_program_that_asks_to_be_left_is_told_of_doubt_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @workflow(name="waits")
    def waits() -> Any:
        return surehold.wait_for("well?")

    assert waits.run(run_id="r", storage=Counting(), wait=False).status == "waiting"
    assert [one for one in caplog.records if one.name == "surehold.run"] == []


def test_a_worker_says_nothing_of_runs_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    storage = Counting()
    function(storage)
    caplog.clear()
    assert drive("r", storage=storage, entry_point=f"{__name__}:asks").outcome == "waiting"
    assert [one for one in caplog.records if one.name == "surehold.run"] == []


def test_an_agent_that_failed_says_so_and_has_no_value(caplog: pytest.LogCaptureFixture) -> None:
    def down(messages: Any) -> str:
        raise ConnectionError("no network")

    made = Agent("a", model=ScriptedModel(down), storage=Counting(), report=lambda line: None)
    with caplog.at_level(logging.WARNING):
        result = asyncio.run(made.run("task", run_id="r"))
    assert "run r failed: ConnectionError: no network (surehold show r)" in caplog.text
    with pytest.raises(RunError, match="it is failed: ConnectionError: no network"):
        _ = result.value
    assert result.answer is None


def _recorded(path: str) -> int:
    return len(path)


@pytest.mark.parametrize("in_item", [False, True])
def test_a_loop_that_ends_without_a_recorded_call_is_refused_before_it_is_saved(
    in_item: bool,
) -> None:
    def work(calls: int, *, dies: bool = False) -> None:
        with surehold.run("r", storage=storage) as run:
            for item in run.each("a") if in_item else "a":
                for _ in range(calls):
                    run.call(_recorded, item)
                run.effect("a.b@/c", _recorded, item, key="x.1")
                if dies:
                    raise Killed

    storage = Counting()
    with suppress(Killed):
        work(2, dies=True)
    before = len(storage.appended)
    with pytest.raises(ShapeError, match=r"_recorded@1\.1, and its code now ends without it"):
        work(1)
    assert len(storage.appended) == before
    work(2)


def test_a_run_that_waits_in_this_process_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    def two() -> list[str]:
        return [surehold.receive("first"), surehold.receive("second")]

    address = f"sqlite:///{tmp_path}/runs.db"
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(two.run, run_id="r", storage=address)
        for topic in ("first", "second"):
            while not _waits_for(topic, address):
                assert not made.done()
                time.sleep(0.01)
            surehold.send("r", topic, topic, storage=address)
        assert made.result().value == ["first", "second"]
    told = [message for message in caplog.messages if " waits: " in message]
    assert told == ["run r waits: message first (surehold pending r)"]


def _waits_for(topic: str, address: str) -> bool:
    with suppress(NotFoundError):
        return topic in [one.name for one in surehold.pending("r", storage=address)]
    return False
