"""Short paths at every door: the storage calls of a resume, and of a save.

A run is executed once; then, for every append that it made, its process is killed right after
that append, and the run is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START
from langgraph.graph import StateGraph as LangGraph
from tests.builders.agents import call, turns
from tests.builders.counting import Counting
from tests.builders.fleets import manager, team

import surehold
from surehold import (
    Agent,
    AsyncCheckpointManager,
    CheckpointManager,
    Fleet,
    HookEvent,
    HookManager,
    ResilientCheckpointManager,
    StateGraph,
    step,
    workflow,
)
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.testing.scripted import ScriptedModel

Execute = Callable[[Counting], None]
"""Begins the run "r" in a storage, or continues it."""


@step(in_doubt="retry")
def double(number: int) -> int:
    return 2 * number


def loop(storage: Counting) -> None:
    with surehold.run("r", storage=storage) as run:
        for number in run.each([1, 2, 3]):
            run.state[str(number)] = run.call(double, number)


def async_loop(storage: Counting) -> None:
    async def body() -> None:
        async with surehold.run("r", storage=storage) as run:
            async for number in run.each([1, 2, 3]):
                run.state[str(number)] = await run.call(double, number)

    asyncio.run(body())


def function(storage: Counting) -> None:
    @workflow(name="doubles")
    def doubles() -> list[int]:
        return [double(number) for number in range(3)]

    doubles.run(run_id="r", storage=storage)


def async_function(storage: Counting) -> None:
    @step(name="double", in_doubt="retry")
    async def redouble(number: int) -> int:
        return 2 * number

    @workflow(name="doubles")
    async def doubles() -> list[int]:
        return [await redouble(number) for number in range(3)]

    asyncio.run(doubles.run(run_id="r", storage=storage))


def line(storage: Counting) -> StateGraph:
    made = StateGraph("line", storage=storage)

    async def work(state: Any) -> dict[str, Any]:
        return {"paid": await surehold.effect("pay", int, 1)}

    for node in "abc":
        made.add_node(node, work)
    made.add_edge("a", "b")
    made.add_edge("b", "c")
    made.set_entry_point("a")
    made.set_exit_point("c")
    return made


def graph(storage: Counting) -> None:
    asyncio.run(line(storage).run(run_id="r"))


def resumed_graph(storage: Counting) -> None:
    made = line(storage)
    asyncio.run(made.resume("r") if storage.holds("r") else made.run(run_id="r"))


def agent(storage: Counting) -> None:
    def look(query: str) -> str:
        """Look."""
        return query

    script = turns(call("look", query="a"), call("look", query="b"), "done", plan="none")
    model = ScriptedModel(script)
    made = Agent("a", model=model, tools=[look], storage=storage, report=lambda line: None)
    asyncio.run(made.resume("r") if storage.holds("r") else made.run("task", run_id="r"))


def fleet(storage: Counting) -> None:
    async def speak(instruction: str) -> str:
        return "done"

    async def body() -> None:
        async with Fleet(manager(2), dict.fromkeys(team(), speak), storage=storage) as made:
            await (made.resume("r") if storage.holds("r") else made.run("task", run_id="r"))

    asyncio.run(body())


def resilient(storage: Counting) -> None:
    with ResilientCheckpointManager("r", storage) as made:
        newest = made.get_latest_checkpoint()
        storage.calls.clear()
        if newest is not None:
            made.restore_checkpoint(newest)
        for number in range(3):
            made.memory["number"] = number
            made.create_checkpoint("routine")


class _Values(TypedDict):
    number: int


def thread(storage: Counting) -> None:
    made = LangGraph(_Values)
    for before, name in (START, "a"), ("a", "b"), ("b", "c"):
        made.add_node(name, lambda values: {"number": values["number"] + 1})
        made.add_edge(before, name)
    made.add_edge("c", END)
    config: Any = {"configurable": {"thread_id": "r"}}
    with SureholdSaver(storage) as saver:
        compiled = made.compile(checkpointer=saver)
        begun = storage.has_run("r")
        storage.calls.clear()
        compiled.invoke(None if begun else {"number": 0}, config, durability="sync")


DOORS = {
    loop: 2,
    async_loop: 2,
    function: 2,
    async_function: 2,
    graph: 2,
    resumed_graph: 3,
    agent: 3,
    fleet: 4,
    resilient: 5,
    thread: 4,  # the last is for the writes of tasks, if the step was not completed
}
"""The doors, each with the storage calls that a resume may make before it saves, lease included."""

every_door = pytest.mark.parametrize("execute", DOORS, ids=lambda door: door.__name__)


@every_door
def test_a_resume_is_few_storage_calls_wherever_the_run_was_killed(execute: Execute) -> None:
    whole = Counting()
    execute(whole)
    seen: list[list[str]] = []
    for appends in range(1, len(whole.appended)):
        left = whole.killed_after(appends)
        execute(left)
        seen.append(left.before_append)
    longest = max(seen, key=len)
    assert len(longest) <= DOORS[execute], longest


@every_door
def test_a_save_is_one_storage_call(execute: Execute) -> None:
    whole = Counting()
    execute(whole)
    assert {*whole.calls[whole.calls.index("append") :]} <= {"append", "release_lease"}


def test_a_loop_goes_back_after_a_failure_without_a_look_at_the_storage() -> None:
    storage = Counting()
    for _ in range(2):
        with (
            pytest.raises(ZeroDivisionError),
            surehold.run("r", storage=storage) as run,
        ):
            run.checkpoint(n=[1])
            storage.calls.clear()
            run.state["n"].append(1 // 0)
        assert storage.calls == ["append", "release_lease"]
    with surehold.run("r", storage=storage) as run:
        assert run.state == {"n": [1]}


class Leasing(Counting):
    """A storage that takes a lease and looks at the run in two calls."""

    take_run = None  # type: ignore[assignment]


class Unleased(Leasing):
    """A storage without leases."""

    take_lease = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("storage", "calls"),
    [
        (Counting, ["take_run", "read"]),
        (Leasing, ["take_lease", "head_and_newest", "read"]),
        (Unleased, ["head_and_newest", "read"]),
    ],
)
def test_a_run_is_taken_as_the_storage_can(storage: type[Counting], calls: list[str]) -> None:
    whole = storage()
    loop(whole)
    left = whole.killed_after(2)
    loop(left)
    assert left.before_append == calls


@pytest.mark.parametrize("execute", [loop, async_loop, function, async_function, graph])
def test_hooks_hear_of_a_resume_at_every_door(execute: Execute) -> None:
    whole = Counting()
    execute(whole)
    heard: list[str] = []
    hooks = HookManager()
    for event in (HookEvent.PRE_RESUME, HookEvent.POST_CHECKPOINT_LOAD, HookEvent.POST_RESUME):
        hooks.register(event, lambda context: heard.append(context.event_type.value))
    left = whole.killed_after(2)
    if execute is graph:
        made = line(left).over(AsyncCheckpointManager(left, hook_manager=hooks))
        asyncio.run(made.run(run_id="r"))
    else:
        execute(CheckpointManager(left, hook_manager=hooks))  # type: ignore[arg-type]
    assert heard == ["pre_resume", "post_checkpoint_load", "post_resume"]
