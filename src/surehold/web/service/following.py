"""The events of one run as server-sent events, resumable at every event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from surehold.doors.events import Event, events_after
from surehold.engine.managers import CheckpointManager
from surehold.views.run import is_over, run_of
from surehold.web.live import ChangeHub

_CONNECTED = 2.0
"""Seconds after which a stream without news looks whether its client is still there."""
_ALIVE = 15.0


class Following:
    """The events of a run after the one that a client saw last, until the run is over."""

    def __init__(self, manager: CheckpointManager, run_id: str, seen: str) -> None:
        self._manager = manager
        self._run_id = run_id
        self._seen = seen

    def is_at_end(self) -> bool:
        """True if the client has seen all events, and there will be no more."""
        found, over = self._look()
        return over and not found

    def _look(self) -> tuple[list[tuple[str, Event]], bool]:
        over = is_over(self._manager.storage, run_of(self._manager, self._run_id))
        run = run_of(self._manager, self._run_id)  # with all that led to its end
        return events_after(self._manager.reader, run, self._seen), over

    async def stream(self, request: Request, hub: ChangeHub) -> AsyncIterator[str]:
        """The events as text."""
        yield "retry: 1000\n\n"
        said = time.monotonic()
        async with hub:
            await hub.ready.wait()
            while True:
                news = hub.news
                found, over = await run_in_threadpool(self._look)
                for id, event in found:
                    self._seen = id
                    yield _text(id, event)
                if found:
                    said = time.monotonic()
                    continue
                if over:
                    return
                while not news.is_set():
                    try:
                        async with asyncio.timeout(_CONNECTED):
                            await news.wait()
                    except TimeoutError:
                        if await request.is_disconnected():
                            return
                        if time.monotonic() - said > _ALIVE:
                            said = time.monotonic()
                            yield ": alive\n\n"


def _text(id: str, event: Event) -> str:
    told = {"type": event.type, "at": event.timestamp, **event.data}
    return f"id: {id}\ndata: {msgspec.json.encode(told).decode()}\n\n"
