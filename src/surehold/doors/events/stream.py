"""The events of an execution as an asynchronous iterator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from surehold.core.state import Event
from surehold.errors import UsageError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_KEPT = 4096
"""Events that are kept for readers that are slow or come back."""


class EventStream(Generic[T]):
    """Executes a run and gives its events, then its result.

    The `seq` of an event is the newest record of the run when it happened: the same number in
    every process. `since` gives the events after a number again, for a client that lost its
    connection; `surehold.events` does so in another process, from the journal. The last 4,096
    events are kept; a reader that falls behind gets one ``stream.skipped`` in place of the others.

    The execution begins with the first event that is asked for, and is cancelled if the iteration
    is left early: the run can be resumed. What the execution raises is raised after its last
    event.

    >>> import asyncio
    >>> from surehold import StateGraph
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

    def __init__(self, run: Callable[..., Coroutine[Any, Any, T]]) -> None:
        self._run = run
        """Executes the run and calls its *on_event* with every event."""
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._count = 0
        """Events so far; those before the kept ones are gone."""
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
        """Keep an event; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._add, event)

    def _add(self, event: Event) -> None:
        self._kept.append(event)
        self._count += 1
        self._added.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        if self._task is not None:
            raise UsageError("the stream is being read", hint="since(0) gives its events again")
        return self._read()

    async def _read(self) -> AsyncIterator[Event]:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run(on_event=self._take))
        self._task.add_done_callback(lambda task: self._added.set())
        try:
            async for event in self._from(0):
                yield event
            self._task.result()
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])

    async def since(self, seq: int) -> AsyncIterator[Event]:
        """The events after record *seq*, and then those that follow, to the end."""
        first = self._count - len(self._kept)
        early = next((at for at, event in enumerate(self._kept) if event.seq > seq), None)
        async for event in self._from(first + early if early is not None else self._count):
            yield event

    async def _from(self, number: int) -> AsyncIterator[Event]:
        """The events from the one with that number on, which counts from 0."""
        while True:
            while number < self._count:
                gone = self._count - len(self._kept) - number
                if gone > 0:
                    yield _skipped(self._kept[0], gone)
                    number += gone
                yield self._kept[number - (self._count - len(self._kept))]
                number += 1
            if self._task is None or self._task.done():
                await asyncio.sleep(0)  # events that the end has overtaken
                if number >= self._count:
                    return
                continue
            self._added.clear()
            await self._added.wait()


def _skipped(following: Event, count: int) -> Event:
    return Event(
        type="stream.skipped",
        source=following.source,
        timestamp=datetime.now(UTC),
        data={"events": count},
        seq=following.seq,
    )


def streamed(
    run: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], EventStream[T]]:
    """Make a method that gives the events of *run*, called with the same arguments."""

    @wraps(run, assigned=("__module__",))
    def stream(runner: S, /, *args: P.args, **kwargs: P.kwargs) -> EventStream[T]:
        """Execute as `run` with the same arguments does, and give the events."""
        if "on_event" in kwargs:
            raise UsageError("a stream has no on_event", hint="iterate over its events")
        return EventStream(partial(getattr(runner, run.__name__), *args, **kwargs))

    return stream
