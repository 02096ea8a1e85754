"""Live updates as server-sent events.

The id of an event is that of the record it tells of: its seq in the stream of a run, its own id in
that of the storage. A browser that reconnects states the last one it saw and misses none. One task
looks at the storage, however many are connected: when the storage notifies of a change, and every
quarter of a second where it cannot.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.errors import SureholdError
from surehold.storage.base import RecordQuery, Storage, Subscription, Watching
from surehold.views.run import run_of

_EVERY = 0.25
"""Seconds between two looks at a storage that does not notify."""
_BESIDE = 5.0
"""Seconds between two looks beside notifications, in case one was lost."""
_PAUSE = 0.1
"""Seconds between two looks at the least, however many notifications arrive."""
_CONNECTED = 2.0
"""Seconds after which a stream without news looks whether its client is still there."""
_ALIVE = 15.0
_AT_ONCE = 500
_WINDOW = 100
"""Newest records that a look reads: servers commit records of different runs out of order."""
_SETTLED = 2.0
"""Seconds after a change in which every look reads the window."""
_MOST_MISSED = 2000
"""Records that a client is told of at once; after more it is told to read everything again."""
STREAMED = {"cache-control": "no-store", "x-accel-buffering": "no"}
Event = tuple[str, dict[str, Any] | None]
"""An id, and the record; None: more was written than is told."""


class Live:
    """The streams of one storage."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, ChangeHub] = WeakKeyDictionary()

    async def run(self, request: Request) -> Response:
        """Stream the records of a run after the one that was seen last."""
        run_id = request.query_params.get("id", "")
        run = await run_in_threadpool(run_of, self._manager, run_id)
        last = seen_before(request)
        seen = int(last) if last.isdecimal() else run.seq

        async def look() -> list[Event]:
            nonlocal seen
            found = await run_in_threadpool(self._records, run_id, seen)
            seen = int(found[-1][0]) if found else seen
            return found

        return self._respond(request, look)

    async def storage(self, request: Request) -> Response:
        """Stream the records of all runs after the one that was seen last."""
        hub, seen = self.hub(), seen_before(request)
        told: int | None = None
        missed: set[str] = set()

        async def look() -> list[Event]:
            nonlocal told
            if told is None:
                await hub.ready.wait()
                told = hub.place_of(seen)
            if told is None:
                told = hub.count
                found = await run_in_threadpool(_after, self._manager.storage, seen)
                missed.update(id for id, _ in found)
                return found
            found, told = hub.since(told)
            return [event for event in found if event[0] not in missed]

        return self._respond(request, look)

    def hub(self) -> ChangeHub:
        """The hub of this event loop: it looks at the storage for all streams."""
        return self._hubs.setdefault(asyncio.get_running_loop(), ChangeHub(self._manager.storage))

    def _respond(self, request: Request, look: Callable[[], Awaitable[list[Event]]]) -> Response:
        stream = _events(request, self.hub(), look)
        return StreamingResponse(stream, media_type="text/event-stream", headers=STREAMED)

    def _records(self, run_id: str, after: int) -> list[Event]:
        run = self._manager.reader.run(run_id)
        if run is None or run.seq <= after:
            return []
        last = min(run.seq, after + _AT_ONCE)
        return [
            (str(record.header.seq), _told(record.header))
            for record in self._manager.storage.read(run_id, first=after + 1, last=last)
        ]


def _newest(storage: Storage, is_known: Callable[[str], bool], limit: int) -> list[Header] | None:
    """The records since the newest known one, oldest first; None if too many.

    Of the first *limit* records those that are not known, and of older ones all up to a known one.
    """
    found: list[Header] = []
    before: str | None = None
    while len(found) < _MOST_MISSED:
        page = [*storage.headers(RecordQuery(limit=limit, notes=True, before=before))]
        found += (header for header in page if not is_known(header.id))
        if len(page) < limit or any(is_known(header.id) for header in page):
            return found[::-1]
        before, limit = page[-1].id, _AT_ONCE
    return None


def _after(storage: Storage, seen: str) -> list[Event]:
    """The records after the *seen* one, oldest first; the newest if not stated."""
    newest = RecordQuery(limit=1, notes=True)
    if not seen:
        return [(header.id, _told(header)) for header in storage.headers(newest)]
    is_older = False

    def is_known(id: str) -> bool:
        nonlocal is_older
        is_older = is_older or id == seen
        return is_older

    found = _newest(storage, is_known, _WINDOW)
    if found is None or not is_older:
        return [(header.id, None) for header in storage.headers(newest)]
    return [(header.id, _told(header)) for header in found]


class ChangeHub:
    """Looks at the storage while someone listens, and wakes all who do."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.clients = 0
        """The number of streams."""
        self.news = asyncio.Event()
        """Set at the next change."""
        self._task: asyncio.Task[None] | None = None
        self._known: dict[str, None] = {}
        self._last: str | None = None
        self._changed = 0.0
        self._events: deque[Event] = deque(maxlen=_MOST_MISSED)
        self.count = 0
        """Events so far."""
        self.ready = asyncio.Event()
        """Set once it has looked: it tells of every later record."""

    async def __aenter__(self) -> ChangeHub:
        self.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.clients -= 1
        if not self.clients and self._task is not None:
            self._task.cancel()
            self._task = None

    def since(self, count: int) -> tuple[list[Event], int]:
        """The events after the first *count*, and how many there are now."""
        fresh = self.count - count
        if fresh > len(self._events):
            return [(self._events[-1][0], None)], self.count
        return [*self._events][len(self._events) - fresh :], self.count

    def place_of(self, id: str) -> int | None:
        """The number of events up to a record's; None if it is not among the last."""
        places = (at for at, event in enumerate(reversed(self._events)) if event[0] == id)
        back = next(places, None)
        return None if back is None else self.count - back

    async def _watch(self) -> None:
        loop, nudged = asyncio.get_running_loop(), asyncio.Event()

        def hear(_: str | None) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(nudged.set)

        storage = self._storage
        subscription = storage.subscribe(hear) if isinstance(storage, Watching) else Subscription()
        try:
            while True:
                nudged.clear()
                with suppress(SureholdError):  # the next look may succeed
                    self._tell(await run_in_threadpool(self._look, is_live=subscription.is_live))
                    self.ready.set()
                await asyncio.sleep(min(_PAUSE, _EVERY))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BESIDE if subscription.is_live else _EVERY):
                        await nudged.wait()
        finally:
            subscription.close()

    def _look(self, *, is_live: bool) -> list[Event]:
        newest = self._storage.headers(RecordQuery(limit=1, notes=True))
        last, now = next((header.id for header in newest), ""), time.monotonic()
        if last != self._last:
            self._changed = now
        elif not is_live and now - self._changed > _SETTLED:
            return []
        known, events = self._known, list[Event]()
        found = _newest(self._storage, known.__contains__, _WINDOW) if self.ready.is_set() else None
        if found is not None:
            events = [(header.id, _told(header)) for header in found]
        else:
            found = [*self._storage.headers(RecordQuery(limit=_WINDOW, notes=True))][::-1]
            if self.ready.is_set():  # else those who listen catch up to here by themselves
                events = [(header.id, None) for header in found[-1:]]
        known.update(dict.fromkeys(header.id for header in found))
        while len(known) > 2 * _MOST_MISSED:
            del known[next(iter(known))]
        self._last = last
        return events

    def _tell(self, events: list[Event]) -> None:
        if events:
            self._events += events
            self.count += len(events)
            news, self.news = self.news, asyncio.Event()
            news.set()


def seen_before(request: Request) -> str:
    """The id of the last event that a client saw; empty if it states none."""
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def _told(header: Header) -> dict[str, Any]:
    names = ("run_id", "seq", "step", "node", "kind", "frame", "status")
    return {name: getattr(header, name) for name in names}


async def _events(
    request: Request, hub: ChangeHub, look: Callable[[], Awaitable[list[Event]]]
) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    said, clients = time.monotonic(), 0
    async with hub:
        while not await request.is_disconnected():
            news = hub.news
            found = await look()
            if hub.clients != clients:
                clients = hub.clients
                yield f"event: clients\ndata: {clients}\n\n"
            for id, told in found:
                kind = "record" if told is not None else "reset"
                yield f"id: {id}\nevent: {kind}\ndata: {msgspec.json.encode(told).decode()}\n\n"
            while not news.is_set() and len(found) < _AT_ONCE:
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
