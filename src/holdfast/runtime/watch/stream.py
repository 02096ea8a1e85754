"""The events of an execution as an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.errors import UsageError
from holdfast.runtime.watch.observers import Event

__all__ = ["EventStream"]

T = TypeVar("T")


class EventStream(Generic[T]):
    """Executes a run and gives its events, numbered from 1 in `seq`, then its result.

    The execution begins with the first event that is asked for, and is cancelled if the iteration
    is left early: the run can be resumed. What the execution raises is raised after its last
    event. All events are kept: `since` gives those after a number again, for a client that lost
    its connection.

    >>> import asyncio
    >>> from holdfast import StateGraph
    >>> graph = StateGraph("count", storage="memory://")
    >>> graph.add_node("up", lambda state: {"n": 1})
    >>> graph.set_entry_point("up"); graph.set_exit_point("up")
    >>> async def main():
    ...     stream = graph.stream()
    ...     seen = [event.type async for event in stream if event.type.startswith("node.")]
    ...     return seen, stream.result.state["n"]
    >>> asyncio.run(main())
    (['node.start', 'node.complete'], 1)
    """

    def __init__(self, start: Callable[[Callable[[Event], None]], Coroutine[Any, Any, T]]) -> None:
        self._start = start
        self._events: list[Event] = []
        self._added = asyncio.Event()
        self._task: asyncio.Task[T] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def result(self) -> T:
        """The result of the execution; a `UsageError` before its end."""
        if self._task is None or not self._task.done():
            raise UsageError("the execution has not ended", hint="read the events to their end")
        return self._task.result()

    def _take(self, event: Event) -> None:
        """Number an event; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._add, event)

    def _add(self, event: Event) -> None:
        self._events.append(msgspec.structs.replace(event, seq=len(self._events) + 1))
        self._added.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        if self._task is not None:
            raise UsageError("the stream is being read", hint="since(0) gives its events again")
        return self._read()

    async def _read(self) -> AsyncIterator[Event]:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._start(self._take))
        self._task.add_done_callback(lambda task: self._added.set())
        try:
            async for event in self.since(0):
                yield event
            self._task.result()
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])

    async def since(self, seq: int) -> AsyncIterator[Event]:
        """The events after number *seq*, and then those that follow, to the end."""
        while True:
            while seq < len(self._events):
                seq += 1
                yield self._events[seq - 1]
            if self._task is None or self._task.done():
                await asyncio.sleep(0)  # events that the end has overtaken
                if seq >= len(self._events):
                    return
                continue
            self._added.clear()
            await self._added.wait()
