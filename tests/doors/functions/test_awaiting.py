"""A call that must be awaited and was not is an error, in whatever part of a run."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from tests.builders.agents import call, turns

import surehold
from surehold import MemoryStorage, StateGraph, effect, gather, interrupt, step, workflow
from surehold.engine.runs.effects import awaiting
from surehold.errors import StepError, UsageError
from surehold.testing.scripted import ScriptedModel


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Python's own warning would say too little, too late."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@step
async def charge() -> str:
    return "charged"


@workflow
async def child() -> str:
    return "done"


CALLS = {
    "effect": lambda: effect("pay", str, 5),
    "interrupt": lambda: interrupt("deploy?"),
    "gather": gather,
    "step": charge,
    "sleep": lambda: surehold.sleep(5),
}


def one_node(node: Any) -> StateGraph:
    graph = StateGraph("g", storage=MemoryStorage())
    graph.add_node("n", node)
    graph.set_entry_point("n")
    graph.set_exit_point("n")
    return graph


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_does_not_await_fails(name: str, is_async: bool) -> None:
    async def forgets(state: Any) -> None:
        CALLS[name]()

    def plain(state: Any) -> None:
        CALLS[name]()

    with pytest.raises(StepError, match="not awaited") as caught:
        one_node(forgets if is_async else plain).run_sync(run_id="r")
    assert "`await`" in str(caught.value)


def test_a_plain_node_may_return_what_is_to_be_awaited() -> None:
    async def double(number: int) -> dict[str, int]:
        return {"number": 2 * number}

    graph = one_node(lambda state: effect("double", double, 4))
    assert graph.run_sync(run_id="r")["number"] == 8


@pytest.mark.parametrize("name", [*CALLS, "child"])
def test_a_plain_workflow_refuses_what_must_be_awaited_where_it_is_called(name: str) -> None:
    reached: list[str] = []
    calls: dict[str, Any] = {**CALLS, "child": child}

    @workflow(name=f"plain-{name}")
    def plain() -> None:
        calls[name]()
        reached.append(name)

    if name == "sleep":
        assert plain.run(run_id="r", storage=MemoryStorage(), wait=False).status == "waiting"
        return
    with pytest.raises(UsageError, match="async"):
        plain.run(run_id="r", storage=MemoryStorage())
    assert not reached


@pytest.mark.parametrize("name", ["effect", "interrupt", "gather", "step", "sleep"])
def test_an_async_workflow_that_does_not_await_fails(name: str) -> None:
    @workflow(name=f"forgets-{name}")
    async def forgets() -> None:
        CALLS[name]()

    with pytest.raises(UsageError, match="not awaited"):
        asyncio.run(forgets.run(run_id="r", storage=MemoryStorage()))


@pytest.mark.parametrize("name", ["effect", "interrupt", "gather", "step"])
def test_a_blocking_run_refuses_what_must_be_awaited(name: str) -> None:
    with (
        pytest.raises(UsageError, match="async"),
        surehold.run("r", storage=MemoryStorage()),
    ):
        CALLS[name]()


def test_an_async_run_with_a_call_that_is_not_awaited_fails() -> None:
    storage = MemoryStorage()

    async def main() -> None:
        async with surehold.run("r", storage=storage) as run:
            run.effect("pay", str, 5)

    with pytest.raises(UsageError, match="'pay' was called and not awaited"):
        asyncio.run(main())
    assert [run.status for run in storage.runs(surehold.RunQuery())] == ["failed"]


def test_a_blocking_run_in_async_code_may_await() -> None:
    async def main() -> Any:
        with surehold.run("r", storage=MemoryStorage()):
            return await effect("pay", str, 5)

    assert asyncio.run(main()) == "5"


def test_a_tool_that_does_not_await_is_no_done_tool() -> None:
    def pay(amount: int) -> str:
        """Pay."""
        effect("pay", str, amount)
        return "paid"

    model = ScriptedModel(turns(call("pay", amount=5), "done"))
    agent = surehold.Agent("buyer", model=model, tools=[pay], storage=MemoryStorage())
    result = asyncio.run(agent.run("buy"))
    assert result.status == "failed"
    assert "effect('pay') was called and not awaited" in (result.error or "")


@pytest.mark.parametrize("seconds", [-1, "5", None, True, float("nan"), float("inf"), 1e12])
def test_a_sleep_needs_a_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(UsageError, match="seconds"):
        surehold.sleep(seconds)


WAITS: dict[str, Callable[[Any], Any]] = {
    "wait_for": lambda seconds: surehold.wait_for("event", timeout=seconds),
    "receive": lambda seconds: surehold.receive("topic", timeout=seconds),
    "receive_update": lambda seconds: surehold.receive_update("name", timeout=seconds),
    "interrupt": lambda seconds: interrupt("Agree?", timeout=seconds),
}


@pytest.mark.parametrize("seconds", [-1, "5", 0, True, 1e12, float("inf"), float("nan")])
@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_has_a_time_limit_that_is_a_date(wait: str, seconds: Any) -> None:
    @workflow(name="waits")
    async def waits() -> Any:
        return await WAITS[wait](seconds)

    with MemoryStorage() as storage:
        for _ in range(2):
            with pytest.raises(UsageError, match="timeout is"):
                await waits.run(run_id="r", storage=storage, wait=False)
        assert surehold.pending(storage=storage) == []


@pytest.mark.parametrize("door", ["workflow", "run"])
def test_a_step_in_a_thread_without_its_run_is_warned_of(door: str) -> None:
    @step(name=f"in-a-pool-of-{door}")
    def double(number: int) -> int:
        return 2 * number

    def pooled() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(double, [1, 2])]

    with pytest.warns(RuntimeWarning, match="not recorded") as warned:
        if door == "workflow":
            workflow(name="pooled")(pooled).run(run_id="r", storage=MemoryStorage())
        else:
            with surehold.run("r", storage=MemoryStorage()):
                pooled()
    assert len(warned) == 1
    assert pooled() == [2, 4], "outside of all runs it is a plain call without a warning"


def test_gather_takes_calls_that_can_be_awaited() -> None:
    @workflow(name="gathers")
    async def gathers() -> Any:
        return await gather([charge(), charge()])  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"gather\(\*calls\)"):
        asyncio.run(gathers.run(run_id="r", storage=MemoryStorage()))


def test_many_calls_that_are_awaited_together_cost_no_more_each() -> None:
    @workflow(name="many")
    async def many(number: int) -> int:
        return len(await asyncio.gather(*(charge() for _ in range(number))))

    def looks(number: int) -> int:
        """How often a call was looked at to see if it began."""
        with mock.patch.object(awaiting, "_is_unawaited", wraps=awaiting._is_unawaited) as looked:
            run = many.run(number, run_id=f"r-{number}", storage=MemoryStorage())
            assert asyncio.run(run).value == number
        return looked.call_count

    assert looks(1600) < 5 * looks(400)


@pytest.mark.parametrize("part", ["parallel", "chain", "predicate"])
def test_parts_of_a_graph_that_do_not_await_fail_with_the_hint(part: str) -> None:
    def forgets(*args: Any) -> bool:
        effect("pay", str, 5)
        return True

    async def node(state: Any) -> None:
        if part == "parallel":
            await surehold.process_parallel([1], forgets)
        elif part == "chain":
            await surehold.process_chain([1], state, forgets)

    graph = StateGraph("g", storage=MemoryStorage())
    graph.add_node("n", node)
    graph.add_node("end", lambda state: None)
    graph.add_edge("n", "end", forgets if part == "predicate" else None)
    graph.set_entry_point("n")
    graph.set_exit_point("end")
    with pytest.raises(StepError, match="not awaited") as caught:
        graph.run_sync(run_id="r")
    assert "write `await` before the call" in caught.value.hint
