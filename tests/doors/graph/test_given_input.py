"""The input given for a run that is there: the same or none continues it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from surehold import (
    HookManager,
    MemoryStorage,
    RedactionHook,
    State,
    StateGraph,
    StateManager,
    interrupt,
)
from surehold.errors import UsageError


def counting(storage: MemoryStorage | None = None, **options: Any) -> StateGraph:
    graph = StateGraph("count", storage=storage, **options)
    graph.add_node("up", lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("up")
    graph.set_exit_point("up")
    return graph


def test_another_input_for_a_completed_run_is_refused() -> None:
    graph = counting(MemoryStorage())
    graph.run_sync({"n": 1}, run_id="x")
    for values in ({"n": 2}, {"n": 1, "more": 1}, {}, State.new({"n": 2}, run_id="x")):
        with pytest.raises(UsageError, match="'x' was begun with another input") as refused:
            graph.run_sync(values, run_id="x")
        assert "resume('x')" in str(refused.value.hint)


def test_the_same_input_or_none_gives_the_recorded_result() -> None:
    graph = counting(MemoryStorage())
    first = graph.run_sync({"n": 1}, run_id="x")
    for values in ({"n": 1}, None, State.new({"n": 1}, run_id="x"), first.state):
        assert graph.run_sync(values, run_id="x")["n"] == 2


@pytest.mark.parametrize("door", ["run", "stream"])
async def test_the_awaited_doors_refuse_another_input(door: str) -> None:
    graph = counting(MemoryStorage())

    async def by_stream(values: dict[str, int]) -> None:
        async for _ in graph.stream(values, run_id="x"):
            pass

    async def by_run(values: dict[str, int]) -> None:
        await graph.run(values, run_id="x")

    enter: Callable[[dict[str, int]], Any] = by_stream if door == "stream" else by_run
    await enter({"n": 1})
    await enter({"n": 1})
    with pytest.raises(UsageError, match="another input"):
        await enter({"n": 2})


async def test_another_input_for_an_unfinished_run_is_refused_with_an_answer_too() -> None:
    graph = StateGraph("desk", storage=MemoryStorage())

    async def ask(state: State) -> dict[str, Any]:
        return {"said": await interrupt("Publish?")}

    graph.add_node("ask", ask)
    graph.set_entry_point("ask")
    graph.set_exit_point("ask")
    assert (await graph.run({"n": 1}, run_id="x")).status == "waiting"
    for more in ({}, {"answer": "yes"}):
        with pytest.raises(UsageError, match="another input"):
            await graph.run({"n": 2}, run_id="x", **more)
    assert (await graph.run({"n": 1}, run_id="x", answer="yes"))["said"] == "yes"
    with pytest.raises(UsageError, match="another input"):
        await graph.run({"n": 2}, run_id="x", answer="yes")


def test_start_without_input_takes_the_run_as_it_is() -> None:
    graph = counting(MemoryStorage())
    graph.start_sync({"n": 1}, run_id="x", entry_point="jobs:graph")
    assert graph.start_sync(run_id="x", entry_point="jobs:graph").run_id == "x"
    with pytest.raises(UsageError, match="another input"):
        graph.start_sync({"n": 2}, run_id="x", entry_point="jobs:graph")


async def test_a_redacted_input_is_the_same_input() -> None:
    hooks = HookManager()
    hooks.register_hook(RedactionHook())
    secret = {"n": 1, "key": "sk-" + "a1B2" * 12}
    async with StateManager("memory://", hook_manager=hooks) as manager:
        graph = counting(manager=manager)
        await graph.run(secret, run_id="x")
        assert (await graph.run(secret, run_id="x"))["n"] == 2


async def test_a_fork_of_a_later_step_continues_whatever_its_source_began_with() -> None:
    graph = StateGraph("line", storage=MemoryStorage())
    graph.add_node("a", lambda state: {"n": state["n"] + 1})
    graph.add_node("b", lambda state: {"n": state["n"] * 10})
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    await graph.run({"n": 1}, run_id="x")
    _, middle, first = await graph.manager.list_checkpoints("x")
    await graph.fork(middle.checkpoint_id, {}, run_id="y")
    assert (await graph.run({"n": 1}, run_id="y"))["n"] == 20
    await graph.fork(first.checkpoint_id, {"n": 4}, run_id="z")
    with pytest.raises(UsageError, match="another input"):
        await graph.run({"n": 1}, run_id="z")
    assert (await graph.run({"n": 4}, run_id="z"))["n"] == 50
