"""Requests to stop a run: by signal, timeout or call; at a boundary or at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal

import msgspec

from surehold.engine.runs.stop_scope import current_stop_scope

InterruptMode = Literal["graceful", "immediate"]
InterruptSource = Literal["signal", "timeout", "budget", "user", "drift"]


class InterruptReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for an interruption of a run."""

    source: InterruptSource
    mode: InterruptMode
    message: str
    timestamp: datetime

    def to_dict(self) -> dict[str, Any]:
        """The reason as the state keeps it."""
        return {**msgspec.structs.asdict(self), "timestamp": self.timestamp.isoformat()}


@contextmanager
def _on_signals(heard: Callable[[int], None], wanted: bool) -> Iterator[None]:
    """Call *heard* for SIGINT and SIGTERM, and restore the handlers at the end.

    Only the main thread receives signals; elsewhere this does nothing. *heard* runs between two
    bytecodes of the main thread, so a node that blocks the event loop does not delay it.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        heard(number)
        loop.call_soon_threadsafe(lambda: None)  # wakes it up, which is all that is wanted

    before = {one: signal.signal(one, handle) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class StopRequests:
    """Requests to stop one run: the first reason stays, the second is immediate.

    A graceful request becomes immediate after *grace* seconds; None: never. Requests may come from
    any thread and from signal handlers.
    """

    def __init__(self, grace: float | None = None) -> None:
        self.reason: InterruptReason | None = None
        self._grace = grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self.children: list[StopRequests] = []
        """Requests of agents that are executed inside this run, in the same task."""

    def request(
        self, source: InterruptSource, message: str, mode: InterruptMode = "graceful"
    ) -> None:
        """Stop after the current node; if *mode* says so, or on a second request, at once."""
        immediate = mode == "immediate" or self.reason is not None
        self.note(source, message, mode)
        if self._loop is not None:
            # Deferred: the node that asks may end before its task could be cancelled in it.
            self._loop.call_soon_threadsafe(self._enforce, immediate)

    def note(
        self, source: InterruptSource, message: str, mode: InterruptMode = "graceful"
    ) -> InterruptReason:
        """Keep the first reason, here and in what is executed inside; return the one kept."""
        for child in self.children:
            child.note(source, message, mode)
        if self.reason is None:
            self.reason = InterruptReason(
                source=source, mode=mode, message=message, timestamp=datetime.now(UTC)
            )
        return self.reason

    def withdraw(self) -> None:
        """Discard the requests made so far."""
        self.reason = None
        self._stop_timer()

    def _enforce(self, immediate: bool) -> None:
        if self.reason is None or self._loop is None:
            return
        if immediate:
            self._cancel()
        elif self._grace is not None:
            self._timer = self._loop.call_later(self._grace, self._cancel)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel(self) -> None:
        """Cancel the task, unless one of the nested runs is between two nodes.

        A run between two nodes saves there and starts no other.
        """
        nested = self._nested()
        if self._cancelled or any(each._task is None for each in nested):
            return
        for each in nested:
            each._cancelled = True
        assert self._task is not None
        self._task.cancel("interrupted")

    def _nested(self) -> list[StopRequests]:
        return [self, *(inner for child in self.children for inner in child._nested())]

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let immediate requests cancel the current task in this block, and only there."""
        self._task, self._cancelled = asyncio.current_task(), False
        try:
            yield
        finally:
            self._task = None

    def caused(self, error: BaseException) -> bool:
        """Return whether *error* is the cancellation made here; if so, take it back."""
        if not isinstance(error, asyncio.CancelledError) or not self._cancelled:
            return False
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return True

    @contextmanager
    def watching(self, *, signals: bool, timeout: float | None = None) -> Iterator[None]:
        """Turn signals and the end of *timeout* into requests while a run is executed."""
        self.reason = None
        self._loop = asyncio.get_running_loop()
        scope = current_stop_scope()
        clock = None
        if timeout is not None:
            message = f"{timeout:g} s have passed"
            clock = self._loop.call_later(timeout, self.request, "timeout", message)
        try:
            with _on_signals(lambda one: self.request("signal", signal.Signals(one).name), signals):
                if scope is not None:
                    scope.add(self._from_scope)
                yield
        finally:
            if scope is not None:
                scope.remove(self._from_scope)
            if clock is not None:
                clock.cancel()
            self._stop_timer()
            self._loop = None

    @contextmanager
    def within(self, outer: StopRequests) -> Iterator[None]:
        """Forward the requests of *outer* while this run is executed inside it."""
        with self.watching(signals=False):
            self.reason = outer.reason
            outer.children.append(self)
            try:
                yield
            finally:
                outer.children.remove(self)

    def _from_scope(self, message: str) -> None:
        self.request("user", message)
