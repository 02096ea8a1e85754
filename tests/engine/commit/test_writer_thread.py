"""The writer's thread answers what was asked before it was closed, and refuses what comes later."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any, cast
from weakref import ref

import pytest

from surehold.core.state import State
from surehold.engine.commit import Writer
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import UsageError
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
