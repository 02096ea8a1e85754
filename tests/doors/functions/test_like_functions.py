"""To `inspect`, and to frameworks that ask it, steps and workflows are functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest

import surehold
from surehold import MemoryStorage


def plain(invoice: int, note: str = "") -> str:
    """Pay an invoice."""
    return f"paid {invoice}{note}"


async def awaited(invoice: int, note: str = "") -> str:
    """Pay an invoice."""
    return f"paid {invoice}{note}"


@pytest.mark.parametrize("make", [surehold.step, surehold.step(retries=1), surehold.workflow])
@pytest.mark.parametrize("function", [plain, awaited])
def test_inspect_takes_it_for_the_function(make: Any, function: Any) -> None:
    made = make(function)
    is_async = function is awaited
    assert inspect.iscoroutinefunction(made) is is_async
    assert asyncio.iscoroutinefunction(made) is is_async
    assert inspect.iscoroutinefunction(functools.partial(made, 1)) is is_async
    assert inspect.signature(made) == inspect.signature(function)
    assert (made.__name__, inspect.getdoc(made)) == (function.__name__, "Pay an invoice.")


def test_so_is_a_method_a_partial_and_what_has_no_code() -> None:
    class Bank:
        @surehold.step
        async def pay(self, invoice: int) -> str:
            return f"paid {invoice}"

    assert inspect.iscoroutinefunction(Bank().pay)
    assert asyncio.run(Bank().pay(3)) == "paid 3"
    assert surehold.step(str.upper)("a") == "A"
    half = surehold.step(name="half")(functools.partial(awaited, 1))
    assert inspect.iscoroutinefunction(half) and asyncio.run(half("!")) == "paid 1!"


async def test_langchain_and_langgraph_await_an_async_step() -> None:
    from langchain_core.tools import tool
    from langgraph.graph import END, START, StateGraph

    calls: list[int] = []

    @surehold.step
    async def pay(invoice: int) -> str:
        """Pay an invoice."""
        calls.append(invoice)
        return f"paid {invoice}"

    @surehold.step
    async def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    @surehold.workflow
    async def clerk() -> list[Any]:
        graph = StateGraph(dict)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        graph.add_edge("node", END)
        made = await tool(pay).ainvoke({"invoice": 2})
        return [made, await graph.compile().ainvoke({"n": 1})]

    storage = MemoryStorage()
    for _ in range(2):
        result = await clerk.run(run_id="clerk", storage=storage)
        assert result.value == ["paid 2", {"n": 2}]
    assert calls == [2]
