"""A completed run pays nothing: started again, it calls nothing and appends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.builders.agents import call, turns
from tests.builders.counting import Counting
from tests.builders.fleets import manager, team

import surehold
from surehold import Agent, CheckpointManager, Fleet, Rules, StateGraph, pending, step, workflow
from surehold.errors import ShapeError, UsageError
from surehold.testing.scripted import ScriptedModel

Start = Callable[[Counting], Any]
"""Starts the run "r" in a storage; gives its result."""

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def charge(order: Any) -> str:
    CALLS.append(order)
    return f"receipt {order}"


def refused(order: Any) -> str:
    CALLS.append(order)
    raise ConnectionError("no")


async def charge_async(order: Any) -> str:
    return charge(order)


charged = step(charge, name="charged", in_doubt="ask")
charged_again = step(charge, name="charged_again", in_doubt="retry")
charged_async = step(charge_async, name="charged")


def loop(storage: Counting) -> Any:
    with surehold.run("r", storage=storage) as run:
        run.state["id"] = str(surehold.uuid4())
        run.state["step"] = charged(1), charged_again(1)
        surehold.sleep(0.01)
        for item in run.each("ab"):
            run.state[item] = run.call(charge, item)
        for item in run.each("xyz"):
            run.state["found"] = run.call(charge, item)
            if item == "y":
                break
        with pytest.raises(ConnectionError):
            run.call(refused, 2)
        run.state["last"] = run.effect("charge", charge, 3)
        run.state["time"] = surehold.now()
    return run.state


def async_loop(storage: Counting) -> Any:
    async def main() -> Any:
        async with surehold.run("r", storage=storage) as run:
            run.state["step"] = await charged_async(1), await surehold.effect("pay", charge, 1)
            async for item in run.each("ab"):
                run.state[item] = await run.call(charge, item)
            run.state["both"] = await asyncio.gather(run.call(charge, 2), run.call(charge_async, 2))
            run.state["time"] = surehold.now()
        return run.state

    return asyncio.run(main())


def loop_with_checkpoints(storage: Counting) -> Any:
    with surehold.run("r", storage=storage) as run:
        for row in range(run.state.get("rows", 0), 3):
            for part in run.each("ab"):
                run.call(charge, f"{row}{part}")
            run.checkpoint(rows=row + 1)
        for part in run.each("cd"):
            run.call(charge, part)
        run.state["end"] = run.call(charge, "end")
    return run.state


def checkpoint_alone(storage: Counting) -> Any:
    with surehold.run("r", storage=storage) as run:
        run.checkpoint(rows=10)
    return run.state


def function(storage: Counting) -> Any:
    @workflow(name="one")
    def one() -> Any:
        return [charged(1), charged_again(2)]

    return one.run(run_id="r", storage=storage).value


def async_function(storage: Counting) -> Any:
    @workflow(name="one")
    async def one() -> Any:
        return [await charged_async(1), await surehold.effect("pay", charge, 2)]

    return asyncio.run(one.run(run_id="r", storage=storage)).value


def _graph(storage: Counting) -> StateGraph:
    made = StateGraph("one", storage=storage)

    async def node(state: Any) -> dict[str, Any]:
        CALLS.append("node")
        return {"paid": await surehold.effect("charge", charge, 1)}

    made.add_node("node", node)
    made.set_entry_point("node")
    made.set_exit_point("node")
    return made


def graph(storage: Counting) -> Any:
    return asyncio.run(_graph(storage).run(run_id="r")).state.to_dict()


def resumed_graph(storage: Counting) -> Any:
    made = _graph(storage)
    work = made.resume("r") if storage.holds("r") else made.run(run_id="r")
    return asyncio.run(work).state.to_dict()


def _agent(storage: Counting) -> Agent:
    def look(query: str) -> str:
        """Look."""
        return charge(query)

    script = turns(call("look", query="a"), "done", plan="none")

    def model(messages: Any) -> Any:
        CALLS.append("model")
        return script(messages)

    return Agent(
        "a",
        model=ScriptedModel(model),
        tools=[look],
        storage=storage,
        report=lambda line: None,
    )


def resumed_agent(storage: Counting) -> Any:
    made = _agent(storage)
    return asyncio.run(made.resume("r") if storage.holds("r") else made.run("task", run_id="r"))


def resumed_fleet(storage: Counting) -> Any:
    async def speak(instruction: str) -> str:
        return charge(instruction)

    async def main() -> Any:
        async with Fleet(manager(1), dict.fromkeys(team(), speak), storage=storage) as made:
            return await (made.resume("r") if storage.holds("r") else made.run("task", run_id="r"))

    return asyncio.run(main()).answer


LOOPS = [loop, async_loop, loop_with_checkpoints, checkpoint_alone]
DOORS = [*LOOPS, function, async_function, graph, resumed_graph, resumed_agent, resumed_fleet]


@pytest.mark.parametrize("start", DOORS)
def test_a_completed_run_calls_nothing_and_appends_nothing(start: Start) -> None:
    storage = Counting()
    first, made, appends = start(storage), [*CALLS], len(storage.appended)
    assert made or start is checkpoint_alone
    for _ in range(99):
        again = start(storage)
        if start is not resumed_agent:  # whose result counts its resumes
            assert again == first
    assert made == CALLS and len(storage.appended) == appends
    assert pending(storage=storage) == []


@pytest.mark.parametrize("start", LOOPS)
def test_retention_keeps_the_outcomes_of_a_completed_run(start: Start) -> None:
    storage = Counting()
    with CheckpointManager(storage, retention=Rules(keep_last=1)) as rules:
        first, made = start(rules), [*CALLS]  # type: ignore[arg-type]
    assert start(storage) == first and made == CALLS


NEW = {
    "step": lambda run: charged("new"),
    "repeatable step": lambda run: charged_again("new"),
    "call": lambda run: run.call(charge, "new"),
    "effect": lambda run: run.effect("charge", charge, "new", in_doubt="retry"),
    "time": lambda run: surehold.now(),
    "pause": lambda run: surehold.sleep(5),
    "items": lambda run: [run.state.update(new=item) for item in run.each("new")],
    "other arguments": lambda run: run.call(int, 2),
}


@pytest.mark.parametrize("new", NEW.values(), ids=[*NEW])
def test_a_new_call_in_a_completed_run_is_refused_before_it_is_made(new: Any) -> None:
    storage = Counting()
    with surehold.run("r", storage=storage) as run:
        run.state["one"] = run.call(int, 1)
    appends = len(storage.appended)
    with pytest.raises(ShapeError), surehold.run("r", storage=storage) as run:
        if new is not NEW["other arguments"]:
            assert run.call(int, 1) == 1
        run.state["one"] = 2
        try:
            new(run)
        except Exception:
            run.state["swallowed"] = True
    assert (run.status, run.state) == ("completed", {"one": 1})
    assert CALLS == [] and len(storage.appended) == appends


async def test_a_new_question_in_a_completed_run_is_refused() -> None:
    storage = Counting()
    async with surehold.run("r", storage=storage) as run:
        run.state["one"] = 1
    with pytest.raises(ShapeError, match="is completed, and has recorded no outcome of question@"):
        async with surehold.run("r", storage=storage) as run:
            await surehold.interrupt("well?")
    assert (run.status, len(storage.appended)) == ("completed", 1)


@pytest.mark.parametrize("items", ["xy", "ab", "", "abcd"])
def test_other_items_for_a_completed_loop_are_refused(items: Iterable[str]) -> None:
    def work(items: Iterable[str]) -> None:
        with surehold.run("r", storage=storage) as run:
            for item in run.each(items):
                run.state[item] = run.call(charge, item)

    storage = Counting()
    work("abc")
    appends = len(storage.appended)
    said = "after 3 items, and now has more.*another run_id" if items == "abcd" else "other ones"
    with pytest.raises(ShapeError, match=said) as raised:
        work(items)
    assert "a run of their own" in str(raised.value)
    assert CALLS == ["a", "b", "c"] and len(storage.appended) == appends


def test_another_checkpoint_in_a_completed_run_is_refused() -> None:
    storage = Counting()
    for rows in (1, 1, 2):
        with surehold.run("r", storage=storage) as run:
            if rows == 2:
                with pytest.raises(UsageError, match="with another rows than this one"):
                    run.checkpoint(rows=rows)
            else:
                run.checkpoint(rows=rows)
    assert (run.state, len(storage.appended)) == ({"rows": 1}, 2)


def test_a_completed_run_may_be_tagged() -> None:
    storage = Counting()
    with CheckpointManager(storage) as rules:
        first = loop(storage)
        newest = rules.latest("r")
        assert newest is not None
        rules.tag(newest.checkpoint_id, "good")
    assert loop(storage) == first
