"""The writer's thread answers what was asked before it was closed, and refuses what comes later."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from surehold.engine.commit import Writer
from surehold.errors import UsageError


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
