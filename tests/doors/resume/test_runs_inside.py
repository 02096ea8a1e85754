"""Agents, fleets and graphs that the code of another run executes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import call, turns
from tests.builders.fleets import calls, ledger, manager

import surehold
from surehold import Agent, AgentConfig, Fleet, State, StateGraph
from surehold.errors import SureholdError
from surehold.testing.scripted import ScriptedModel


def search(query: str) -> str:
    """Search for something."""
    return f"found {query}"


def agent(store: str, log: Path, script: Any = None) -> Agent:
    usual = turns(call("search", query="kelp"), "done")
    return Agent(
        "a",
        config=AgentConfig(planning_enabled=False),
        storage=store,
        tools=[surehold.tool(idempotent=True)(search)],
        model=ScriptedModel(script or usual, log=log),
        report=lambda line: None,
    )


async def in_workflow(work: Callable[[], Awaitable[Any]], store: str) -> None:
    @surehold.workflow(name="outer")
    async def outer() -> None:
        await work()

    await outer.run(run_id="outer", storage=store)


async def in_step(work: Callable[[], Awaitable[Any]], store: str) -> None:
    @surehold.step(name="work", in_doubt="retry")
    async def step() -> None:
        await work()

    await in_workflow(step, store)


async def in_node(work: Callable[[], Awaitable[Any]], store: str) -> None:
    async def node(state: State) -> State:
        await work()
        return state

    graph = StateGraph("outer", storage=store)
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    await graph.run({}, run_id="outer")


async def in_run(work: Callable[[], Awaitable[Any]], store: str) -> None:
    async with surehold.run("outer", storage=store):
        await work()


DOORS = [in_workflow, in_step, in_node, in_run]


@pytest.mark.parametrize("door", DOORS)
async def test_an_agent_that_completed_is_not_executed_again_on_a_replay(
    door: Any, db: str, tmp_path: Path
) -> None:
    log, results = tmp_path / "calls", []

    async def work() -> None:
        async with agent(db, log) as one:
            results.append([await one.run("look"), await one.run("look")])
        if len(results) == 1:
            raise ConnectionError("gone")

    with pytest.raises((SureholdError, ConnectionError)):
        await door(work, db)
    await door(work, db)
    first, second = ([one.run_id for one in each] for each in results)
    assert first == second and len({*first}) == 2  # the same text twice is two runs
    assert [one.answer for one in results[1]] == ["done", "done"]
    assert calls(log) == 2 * 2


@pytest.mark.parametrize("door", DOORS)
async def test_an_agent_that_failed_continues_when_its_run_calls_it_again(
    door: Any, db: str, tmp_path: Path
) -> None:
    log, statuses, fails = tmp_path / "calls", [], [True, False]

    def script(messages: Any) -> Any:
        if messages[-1]["role"] == "tool" and fails.pop(0):
            raise ConnectionError("away")
        return turns(call("search", query="kelp"), "done")(messages)

    async def work() -> None:
        async with agent(db, log, script) as one:
            results = [await one.run("look"), await one.run("look")]
        statuses.extend(each.status for each in results)
        assert results[0].run_id == results[1].run_id

    await door(work, db)
    assert statuses == ["failed", "completed"]


async def test_a_fleet_that_completed_is_not_executed_again_on_a_replay(
    db: str, tmp_path: Path
) -> None:
    log, answers = tmp_path / "calls", []

    def judge(done: int, messages: Any) -> str:
        return ledger("coder", "go", satisfied=done >= 1)

    async def work() -> None:
        crew = {"coder": lambda instruction: "did"}
        async with Fleet(manager(1, judge=judge, log=log), crew, db) as fleet:
            answers.append(await fleet.run("Go"))
        if len(answers) == 1:
            raise ConnectionError("gone")

    with pytest.raises(SureholdError):
        await in_node(work, db)
    made = calls(log)
    await in_node(work, db)
    assert calls(log) == made
    assert answers[0].run_id == answers[1].run_id and answers[1].status == "completed"


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", ["run", "execute"])
async def test_a_graph_that_completed_is_not_executed_again_on_a_replay(
    door: Any, how: str, db: str
) -> None:
    executed, finals = [], []

    def node(state: State) -> State:
        executed.append(state["n"])
        return state.set("n", state["n"] + 1)

    async def work() -> None:
        graph = StateGraph("inner", storage=db)
        graph.add_node("node", node)
        graph.set_entry_point("node")
        graph.set_exit_point("node")
        async with graph:
            finals.append([await getattr(graph, how)({"n": n}) for n in (1, 1, 2)])
        if len(finals) == 1:
            raise ConnectionError("gone")

    with pytest.raises((SureholdError, ConnectionError)):
        await door(work, db)
    await door(work, db)
    assert executed == [1, 1, 2]
    first, second = ([one.run_id for one in each] for each in finals)
    assert first == second and len({*first}) == 3
