"""Live updates as server-sent events.

The id of an event is that of the record it tells of: its seq in the stream of a run, its own id in
that of the storage. A browser that reconnects states the last one it saw and misses none. One task
asks the storage, however many are connected: that works on every medium.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.checkpoint.manager import CheckpointManager
from holdfast.core.records import Header
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.storage.base import RecordQuery

_EVERY = 0.25
_CONNECTED = 2.0
"""Seconds after which a stream without news looks whether its client is still there."""
_ALIVE = 15.0
_AT_ONCE = 500
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
Event = tuple[str, dict[str, Any]]


class Live:
    """The streams of one storage."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()

    async def run(self, request: Request) -> Response:
        """Stream the records of a run after the one that was seen last."""
        run_id = request.query_params.get("id", "")
        run = await run_in_threadpool(self._manager.reader.run, run_id)
        if run is None:
            raise NotFoundError(f"there is no run {run_id!r}", run_id=run_id)
        last = _seen(request)
        seen = int(last) if last.isdecimal() else run.seq
        return self._respond(request, lambda after: self._records(run_id, int(after)), str(seen))

    async def storage(self, request: Request) -> Response:
        """Stream the records of all runs after the one that was seen last."""
        return self._respond(request, lambda after: _since(self._manager, after), _seen(request))

    def _respond(self, request: Request, look: Callable[[str], list[Event]], last: str) -> Response:
        loop = asyncio.get_running_loop()
        hub = self._hubs.setdefault(loop, _Hub(self._manager))
        stream = _events(request, hub, look, last)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)

    def _records(self, run_id: str, after: int) -> list[Event]:
        run = self._manager.reader.run(run_id)
        if run is None or run.seq <= after:
            return []
        last = min(run.seq, after + _AT_ONCE)
        return [
            (str(record.header.seq), _told(record.header))
            for record in self._manager.storage.read(run_id, first=after + 1, last=last)
        ]


def _since(manager: CheckpointManager, seen: str) -> list[Event]:
    """The newest records of the storage after the one that was seen, oldest first."""
    limit = _AT_ONCE if seen else 1
    newest = manager.storage.headers(RecordQuery(limit=limit, notes=True))
    found = [*takewhile(lambda header: header.id != seen, newest)]
    return [(header.id, _told(header)) for header in reversed(found)]


class _Hub:
    """Asks the storage for news while someone listens, and wakes all who do."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._listeners = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> _Hub:
        self._listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._ask())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listeners -= 1
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def news(self) -> asyncio.Event:
        """Set at the next change."""
        return self._news

    async def _ask(self) -> None:
        last: str | None = None
        while True:
            newest = last
            with suppress(HoldfastError):  # the next look may succeed
                newest = await run_in_threadpool(self._newest)
            if newest != last:
                news, self._news = self._news, asyncio.Event()
                news.set()
                last = newest
            await asyncio.sleep(_EVERY)

    def _newest(self) -> str:
        query = RecordQuery(limit=1, notes=True)
        return next((header.id for header in self._manager.storage.headers(query)), "")


def _seen(request: Request) -> str:
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def _told(header: Header) -> dict[str, Any]:
    names = ("run_id", "seq", "step", "node", "kind", "frame", "status")
    return {name: getattr(header, name) for name in names}


async def _events(
    request: Request, hub: _Hub, look: Callable[[str], list[Event]], last: str
) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    said = time.monotonic()
    async with hub:
        while not await request.is_disconnected():
            news = hub.news
            found = await run_in_threadpool(look, last)
            for last, told in found:
                yield f"id: {last}\nevent: record\ndata: {msgspec.json.encode(told).decode()}\n\n"
            while not news.is_set():
                now = time.monotonic()
                if found:
                    said, found = now, []
                elif now - said > _ALIVE:
                    yield ": alive\n\n"
                    said = now
                try:
                    async with asyncio.timeout(_CONNECTED):
                        await news.wait()
                except TimeoutError:
                    if await request.is_disconnected():
                        return
