"""Live updates as server-sent events.

The id of an event is the seq of the record it tells of, so a browser that reconnects states the
last one it saw and misses none. The storage is asked twice a second: that works on every medium.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.checkpoint.manager import CheckpointManager
from holdfast.errors import NotFoundError
from holdfast.storage.base import RecordQuery

__all__ = ["Live"]

_EVERY = 0.5
_ALIVE = 15.0
_AT_ONCE = 500
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
Event = tuple[str, dict[str, Any]]


class Live:
    """The streams of one storage."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager

    async def run(self, request: Request) -> Response:
        """Stream the records of a run after the one that was seen last."""
        run_id = request.query_params.get("id", "")
        run = await run_in_threadpool(self._manager.reader.run, run_id)
        if run is None:
            raise NotFoundError(f"there is no run {run_id!r}", run_id=run_id)
        last = _seen(request)
        seen = int(last) if last.isdecimal() else run.seq
        return _respond(request, lambda after: self._records(run_id, int(after)), str(seen))

    async def storage(self, request: Request) -> Response:
        """Stream a change of any run: the newest record of the storage."""
        return _respond(request, self._newest, _seen(request))

    def _records(self, run_id: str, after: int) -> list[Event]:
        run = self._manager.reader.run(run_id)
        if run is None or run.seq <= after:
            return []
        last = min(run.seq, after + _AT_ONCE)
        return [
            (str(header.seq), _told(header))
            for record in self._manager.storage.read(run_id, first=after + 1, last=last)
            for header in [record.header]
        ]

    def _newest(self, seen: str) -> list[Event]:
        query = RecordQuery(limit=1, notes=True)
        return [
            (header.id, _told(header))
            for header in self._manager.storage.headers(query)
            if header.id != seen
        ]


def _seen(request: Request) -> str:
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def _told(header: Any) -> dict[str, Any]:
    names = ("run_id", "seq", "step", "node", "kind", "frame", "status")
    return {name: getattr(header, name) for name in names}


def _respond(request: Request, look: Callable[[str], list[Event]], last: str) -> Response:
    return StreamingResponse(
        _events(request, look, last), media_type="text/event-stream", headers=_HEADERS
    )


async def _events(
    request: Request, look: Callable[[str], list[Event]], last: str
) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    said = time.monotonic()
    while not await request.is_disconnected():
        found = await run_in_threadpool(look, last)
        for last, told in found:
            yield f"id: {last}\nevent: record\ndata: {msgspec.json.encode(told).decode()}\n\n"
        now = time.monotonic()
        if found:
            said = now
        elif now - said > _ALIVE:
            yield ": alive\n\n"
            said = now
        await asyncio.sleep(_EVERY)
