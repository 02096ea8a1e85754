"""The writer's thread answers what was asked before it was closed, and refuses what comes later."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest

import surehold
from surehold import MemoryStorage
from surehold.agents.tools.definition import read_tool
from surehold.core.state import State
from surehold.engine.commit import Writer, in_thread
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import StepError, UsageError
from surehold.storage.base import Storage


class Commits:
    """A group commit whose outcomes are the requests themselves."""

    def commit_all(self, sent: list[Any]) -> list[Any]:
        return [request for _, request in sent]


@pytest.mark.parametrize("asked", ["call", "commit"])
async def test_what_is_asked_while_the_writer_is_closed_is_answered_or_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that outlives its run asks in the moment in which another thread closes."""
    writer = Writer(cast("Any", Commits()))
    loop = asyncio.get_running_loop()
    make_future, closing = loop.create_future, threading.Thread(target=writer.close)

    def closed_meanwhile() -> asyncio.Future[Any]:
        monkeypatch.undo()
        closing.start()
        closing.join(0.2)  # returns early: `close` waits for the one who asks
        return make_future()

    monkeypatch.setattr(loop, "create_future", closed_meanwhile)
    if asked == "call":
        future: asyncio.Future[Any] = writer.call(lambda: "done")
    else:
        future = writer.commit(cast("Any", None), cast("Any", "done"))
    assert await asyncio.wait_for(future, 30) == "done"
    closing.join()
    with pytest.raises(UsageError, match="closed"):
        writer.call(lambda: "late")


async def test_what_a_loop_has_gathered_is_committed_before_the_writer_ends() -> None:
    writer = Writer(cast("Any", Commits()))
    future = writer.commit(cast("Any", None), cast("Any", "done"))
    await asyncio.to_thread(writer.close)
    assert await asyncio.wait_for(future, 30) == "done"


async def test_the_thread_of_a_writer_that_nobody_refers_to_ends_after_what_was_asked() -> None:
    writer = Writer(cast("Any", Commits()))
    asked = writer.call(threading.current_thread)
    saved = writer.commit(cast("Any", None), cast("Any", "done"))
    del writer
    assert await asyncio.wait_for(saved, 30) == "done"
    thread = await asked
    gc.collect()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()


async def test_a_manager_that_nobody_closes_leaves_no_thread_and_no_open_file(
    tmp_path: Path,
) -> None:
    """As of a graph or an agent that a server makes for each request."""

    async def save() -> tuple[threading.Thread, ref[Storage]]:
        manager = AsyncCheckpointManager(f"sqlite:///{tmp_path}/runs.db")
        await manager.save_checkpoint(State.new({"done": 1}, run_id="nightly"))
        return await manager.call(threading.current_thread), ref(manager.storage)

    thread, storage = await save()
    gc.collect()
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    assert storage() is None


def first(items: Any, fn: str = "") -> Any:
    """A plain function that finds nothing, or what another thread has cancelled.

    A parameter may be called *fn*.
    """
    if items == "cancelled":
        future: Future[None] = Future()
        future.cancel()
        return future.result()
    return next(iter(items))


async def through_call(nothing: str) -> None:
    async with surehold.run("r", storage="memory://") as run:
        await run.call(first, nothing)


async def through_effect(nothing: str) -> None:
    async with surehold.run("r", storage="memory://") as run:
        await run.effect("first", first, nothing)


async def through_node(nothing: str) -> None:
    graph = surehold.StateGraph("first", storage=MemoryStorage())
    graph.add_node("first", lambda state: first(nothing), thread=True)
    graph.set_entry_point("first")
    graph.set_exit_point("first")
    await graph.run()


async def through_tool(nothing: str) -> None:
    await read_tool(first).run({"items": nothing, "fn": "x"}, "key")


async def through_the_engine(nothing: str) -> None:
    await in_thread(first, nothing)


@pytest.mark.parametrize(
    "calls", [through_call, through_effect, through_node, through_tool, through_the_engine]
)
@pytest.mark.parametrize(
    ("items", "kind"), [("", "StopIteration"), ("cancelled", "CancelledError")]
)
async def test_what_no_task_can_be_told_of_another_thread_is_an_error_of_the_call(
    items: str,
    kind: str,
    calls: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    """No task ends by a StopIteration; by a CancelledError, it ends as if it was cancelled."""
    with pytest.raises((RuntimeError, StepError), match=f"raised {kind}"):
        await asyncio.wait_for(calls(items), 30)
