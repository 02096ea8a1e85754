"""Runs of every door whose code is one function, for tests that hold for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.builders.fleets import manager, team

import surehold
from surehold import Agent, AgentConfig, Fleet, StateGraph, workflow
from surehold.testing.scripted import ScriptedModel

Body = Callable[[], Any]
Door = Callable[[str | Any, Body], Any]
"""Executes the run ``r`` in a storage with that code, and gives its result."""


def loop(storage: Any, body: Body) -> str:
    with surehold.run("r", storage=storage) as run:
        body()
    return run.status


def async_loop(storage: Any, body: Body) -> str:
    async def main() -> str:
        async with surehold.run("r", storage=storage) as run:
            body()
        return run.status

    return asyncio.run(main())


def function(storage: Any, body: Body) -> str:
    @workflow(name="one")
    def one() -> None:
        body()

    return one.run(run_id="r", storage=storage).status


def async_function(storage: Any, body: Body) -> str:
    @workflow(name="one")
    async def one() -> None:
        body()

    return asyncio.run(one.run(run_id="r", storage=storage)).status


def graph(storage: Any, body: Body) -> str:
    made = StateGraph("one", storage=storage)

    async def node(state: Any) -> None:
        body()

    made.add_node("node", node)
    made.set_entry_point("node")
    made.set_exit_point("node")
    return asyncio.run(made.run(run_id="r")).status


class _Agent(Agent):
    """An agent whose own code is called in each cycle, outside of its recorded calls."""

    body: Body

    def _capture_state(self) -> Any:
        self.body()
        return super()._capture_state()


def agent(storage: Any, body: Body) -> str:
    config = AgentConfig(planning_enabled=False)
    model = ScriptedModel(lambda messages: "done")
    made = _Agent("one", model=model, storage=storage, config=config, report=lambda line: None)
    made.body = body
    return _status(made.run("task", run_id="r"))


def fleet(storage: Any, body: Body) -> str:
    async def speak(instruction: str) -> str:
        body()
        return "done"

    async def main() -> Any:
        async with Fleet(manager(1), dict.fromkeys(team(), speak), storage=storage) as made:
            return await made.run("task", run_id="r")

    return _status(main())


def _status(work: Awaitable[Any]) -> str:
    async def main() -> str:
        return str((await work).status)

    return asyncio.run(main())


BLOCKING: list[Door] = [loop, function]
DOORS: list[Door] = [*BLOCKING, async_loop, async_function, graph, agent, fleet]
