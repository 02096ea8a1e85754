"""A process whose lease has ended begins nothing: no call, no item, no node, at any door.

The process is frozen between two units of work: its clock jumps by an hour, and nothing renews.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.builders.agents import call, turns
from tests.builders.fleets import manager, team

import surehold
from surehold import Agent, AgentConfig, Fleet, MemoryStorage, State, StateGraph, step, workflow
from surehold.doors.graph import process_parallel
from surehold.engine import leases
from surehold.errors import ConflictError, StorageError
from surehold.storage.base import this_process
from surehold.testing.scripted import ScriptedModel

HOUR = 3600.0
Work = Callable[[str], str]
Door = Callable[[MemoryStorage, Work], Any]
"""Executes the run ``r``, which does ``a`` and then ``b``."""


def items(storage: MemoryStorage, work: Work) -> None:
    with surehold.run("r", storage=storage) as run:
        for name in run.each(["a", "b"]):
            work(name)


def calls(storage: MemoryStorage, work: Work) -> None:
    with surehold.run("r", storage=storage) as run:
        run.call(work, "a")
        run.call(work, "b")


def async_items(storage: MemoryStorage, work: Work) -> None:
    async def main() -> None:
        async with surehold.run("r", storage=storage) as run:
            async for name in run.each(["a", "b"]):
                work(name)

    asyncio.run(main())


def effects(storage: MemoryStorage, work: Work) -> None:
    async def main() -> None:
        async with surehold.run("r", storage=storage):
            await surehold.effect("work", work, "a")
            await surehold.effect("work", work, "b")

    asyncio.run(main())


def function(storage: MemoryStorage, work: Work) -> None:
    @step
    def act(name: str) -> str:
        return work(name)

    @workflow(name="two")
    def two() -> None:
        act("a")
        act("b")

    two.run(run_id="r", storage=storage)


def async_function(storage: MemoryStorage, work: Work) -> None:
    @step
    async def act(name: str) -> str:
        return work(name)

    @workflow(name="two")
    async def two() -> None:
        await act("a")
        await act("b")

    asyncio.run(two.run(run_id="r", storage=storage))


def graph(storage: MemoryStorage, work: Work) -> None:
    made = StateGraph("two", storage=storage)
    for node in "ab":
        made.add_node(node, lambda state, node=node: {"did": work(node)})
    made.add_edge("a", "b")
    made.set_entry_point("a")
    made.set_exit_point("b")
    asyncio.run(made.run(run_id="r"))


def agent(storage: MemoryStorage, work: Work) -> None:
    def look(query: str) -> str:
        """Look."""
        return work(query)

    model = ScriptedModel(turns(call("look", query="a"), call("look", query="b"), "done"))
    config = AgentConfig(planning_enabled=False)
    made = Agent("one", model=model, tools=[look], storage=storage, config=config)
    asyncio.run(made.run("task", run_id="r"))


def fleet(storage: MemoryStorage, work: Work) -> None:
    names = iter("ab")

    async def speak(instruction: str) -> str:
        return work(next(names))

    async def main() -> None:
        async with Fleet(manager(2), dict.fromkeys(team(), speak), storage=storage) as made:
            await made.run("task", run_id="r")

    asyncio.run(main())


def again(storage: MemoryStorage, work: Work) -> None:
    names = iter("ab")

    @step(retries=1, backoff=0.001)
    def act() -> str:
        return failing_at_first(work(next(names)))

    @workflow(name="two")
    def two() -> None:
        act()

    two.run(run_id="r", storage=storage)


def async_again(storage: MemoryStorage, work: Work) -> None:
    names = iter("ab")

    @step(retries=1, backoff=0.001)
    async def act() -> str:
        return failing_at_first(work(next(names)))

    @workflow(name="two")
    async def two() -> None:
        await act()

    asyncio.run(two.run(run_id="r", storage=storage))


def one_at_a_time(storage: MemoryStorage, work: Work) -> None:
    @step(concurrency=1)
    async def act(name: str) -> str:
        await asyncio.sleep(0)  # both have been called
        return work(name)

    @workflow(name="two")
    async def two() -> None:
        await surehold.gather(act("a"), act("b"))

    asyncio.run(two.run(run_id="r", storage=storage))


def in_threads(storage: MemoryStorage, work: Work) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            async with surehold.run("r", storage=storage):
                waiting = [surehold.effect("work", work, name, in_doubt="retry") for name in "ab"]
                await surehold.gather(*waiting)

    asyncio.run(main())


def parallel(storage: MemoryStorage, work: Work) -> None:
    async def each(state: State) -> dict[str, int]:
        done = await process_parallel(["a", "b"], one, max_workers=1, fail_fast=False)
        return {"failed": len(done.errors)}

    def one(name: str) -> str:
        return failing_at_first(work(name))

    made = StateGraph("one", storage=storage)
    made.add_node("each", each)
    made.set_entry_point("each")
    made.set_exit_point("each")
    asyncio.run(made.run(run_id="r"))


def program(storage: MemoryStorage, work: Work) -> None:
    class Served(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = work(request.url.path.strip("/"))
            return httpx.Response(200, stream=httpx.ByteStream(answer.encode()))

    with (
        surehold.record("r", storage=storage, urls=["https://served.example/*"]),
        httpx.Client(transport=Served()) as client,
    ):
        for name in "ab":
            client.get(f"https://served.example/{name}")


def failing_at_first(name: str) -> str:
    if name == "a":
        raise ValueError(name)
    return name


DOORS = [
    *(items, calls, async_items, effects, function, async_function, graph, agent, fleet),
    *(again, async_again, one_at_a_time, in_threads, parallel, program),
]


class Frozen:
    """Work whose first unit ends in an hour without the processor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
        self.done: list[str] = []
        self.meanwhile = meanwhile
        self._away = 0.0
        clocks = SimpleNamespace(time=time.time, monotonic=self._monotonic)
        monkeypatch.setattr(leases, "time", clocks)

    def _monotonic(self) -> float:
        return time.monotonic() + self._away

    def __call__(self, name: str) -> str:
        self.done.append(name)
        if len(self.done) == 1:
            self._away = HOUR
            self.meanwhile()
        return name


@pytest.mark.parametrize("door", DOORS)
def test_nothing_begins_after_another_process_took_the_run(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()
    work = Frozen(
        monkeypatch,
        lambda: storage.take_lease("r", this_process(), now=time.time() + HOUR, ttl=HOUR),
    )
    with pytest.raises(ConflictError):
        door(storage, work)
    assert work.done == ["a"]


@pytest.mark.parametrize("door", DOORS)
def test_a_run_that_nobody_took_continues(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage()
    work = Frozen(monkeypatch, lambda: None)
    door(storage, work)
    assert work.done == ["a", "b"]


@pytest.mark.parametrize("door", DOORS)
def test_nothing_begins_while_the_lease_cannot_be_renewed(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryStorage()

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise StorageError("the storage is away")

    work = Frozen(monkeypatch, lambda: monkeypatch.setattr(storage, "renew_lease", fail))
    with pytest.raises(StorageError):
        door(storage, work)
    assert work.done == ["a"]
