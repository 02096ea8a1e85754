"""Tasks that take turns at making calls are warned of, before a resume finds another order."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import surehold
from surehold import MemoryStorage, step, workflow
from surehold.errors import ShapeError

Body = Callable[[], Awaitable[Any]]


@step
async def do(name: str) -> str:
    await asyncio.sleep(0)
    return name


async def background() -> None:
    async def branch() -> str:
        return await do("branch")

    task = asyncio.create_task(branch())
    await do("one")
    await do("two")
    await task


async def chains() -> None:
    async def chain(name: str) -> None:
        await do(f"{name}1")
        await do(f"{name}2")

    await asyncio.gather(chain("a"), chain("b"))


async def bare() -> None:
    await asyncio.gather(do("a"), do("b"))
    async with asyncio.TaskGroup() as group:
        group.create_task(do("c"))
        group.create_task(do("d"))
    await do("e")


async def single() -> None:
    async def one(name: str) -> str:
        return (await do(name)).upper()

    for _ in range(2):
        await asyncio.gather(one("a"), one("b"))
    await do("c")


async def awaited() -> None:
    async def chain() -> None:
        await do("a")
        await do("b")

    await do("c")
    await asyncio.create_task(chain())
    await do("d")


async def gathered() -> None:
    async def chain(name: str) -> None:
        await do(f"{name}1")
        await do(f"{name}2")

    await surehold.gather(chain("a"), chain("b"))
    await do("c")


async def in_function(body: Body, storage: MemoryStorage) -> None:
    @workflow
    async def made() -> None:
        await body()

    await made.run(run_id="r", storage=storage)


async def in_loop(body: Body, storage: MemoryStorage) -> None:
    async with surehold.run("r", storage=storage) as run:
        async for _ in run.each([1, 2]):
            await body()


async def in_node(body: Body, storage: MemoryStorage) -> None:
    async def node(state: Any) -> dict[str, Any]:
        await body()
        return {}

    graph = surehold.StateGraph("g", storage=storage)
    graph.add_node("one", node)
    graph.add_node("two", node)
    graph.add_edge("one", "two")
    graph.set_entry_point("one")
    graph.set_exit_point("two")
    await graph.run({}, run_id="r")


DOORS = [in_function, in_loop, in_node]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("body", [background, chains])
async def test_tasks_that_take_turns_are_warned_of(door: Any, body: Body) -> None:
    with pytest.warns(RuntimeWarning, match=r"run 'r' take turns .* surehold\.gather"):
        await door(body, MemoryStorage())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("body", [bare, single, awaited, gathered])
async def test_calls_whose_order_is_sure_are_not_warned_of(door: Any, body: Body) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await door(body, MemoryStorage())


async def test_the_error_of_another_order_names_what_helps() -> None:
    failing = True

    @workflow
    async def made() -> None:
        await background()
        if failing:
            raise ConnectionError("no network")

    storage = MemoryStorage()
    with pytest.warns(RuntimeWarning), pytest.raises(ConnectionError):
        await made.run(run_id="r", storage=storage)
    failing = False
    with pytest.raises(ShapeError, match=r"coroutines that make several calls each to surehold"):
        await made.resume("r", storage=storage)
