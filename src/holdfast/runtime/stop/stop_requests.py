"""Asking an agent to stop: by a signal, a timeout or a call; after its cycle or at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from holdfast.runtime.stop.signals import on_signals

__all__ = ["InterruptMode", "InterruptReason", "InterruptSource", "StopRequests"]

InterruptMode = Literal["graceful", "immediate"]
InterruptSource = Literal["signal", "timeout", "budget", "user"]


class InterruptReason(msgspec.Struct, frozen=True, kw_only=True):
    """What interrupted a run."""

    source: InterruptSource
    mode: InterruptMode
    message: str
    timestamp: datetime

    def to_dict(self) -> dict[str, Any]:
        """The reason as it is kept in the state."""
        return {**msgspec.structs.asdict(self), "timestamp": self.timestamp.isoformat()}


class StopRequests:
    """The wish that a run of an agent be stopped. The first one is kept; a second hurries it."""

    def __init__(self, grace: float) -> None:
        self.reason: InterruptReason | None = None
        self._grace = grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._hurry: asyncio.TimerHandle | None = None
        self._cancelled = False
        self.children: list[StopRequests] = []
        """Those of agents that are being executed inside this run; they share its task."""

    def request(
        self, source: InterruptSource, message: str, mode: InterruptMode = "graceful"
    ) -> None:
        """Have the run stop after its cycle or, if *mode* says so or it was asked before, now.

        It may be called from any thread.
        """
        loop = self._loop
        if loop is not None and not _is_running(loop):
            loop.call_soon_threadsafe(self.request, source, message, mode)
            return
        for child in self.children:
            child.tell(source, message, mode)
        hurry = mode == "immediate" or self.reason is not None
        self.note(source, message, mode)
        if loop is None:
            return
        if hurry:
            # Not now: the node that asks for it may end before the task could be cancelled in it.
            loop.call_soon(self._cancel)
        else:
            self._hurry = loop.call_later(self._grace, self._cancel)

    def note(self, source: InterruptSource, message: str, mode: InterruptMode) -> None:
        """Keep the reason, if it is the first."""
        if self.reason is None:
            self.reason = InterruptReason(
                source=source, mode=mode, message=message, timestamp=datetime.now(UTC)
            )

    def tell(self, source: InterruptSource, message: str, mode: InterruptMode) -> None:
        """Keep the reason, and have all that is executed inside keep it."""
        for child in self.children:
            child.tell(source, message, mode)
        self.note(source, message, mode)

    def forget(self) -> None:
        """Go on as if nobody had asked."""
        self.reason = None
        self._stop_hurrying()

    def _stop_hurrying(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None

    def _cancel(self) -> None:
        """Cut short what is executed, in all the runs that are inside each other.

        Where one of them is between two nodes it is left: there it saves, and begins no other.
        """
        line = self._line()
        if self._cancelled or any(each._task is None for each in line):
            return
        for each in line:
            each._cancelled = True
        assert self._task is not None
        self._task.cancel("interrupted")

    def _line(self) -> list[StopRequests]:
        return [self, *(inner for child in self.children for inner in child._line())]

    @contextmanager
    def node(self) -> Iterator[None]:
        """While a node is executed, and only then, it can be cut short."""
        self._task, self._cancelled = asyncio.current_task(), False
        try:
            yield
        finally:
            self._task = None

    def took(self, error: BaseException) -> bool:
        """Whether *error* is a cancellation of our own making; it is then taken back."""
        if not isinstance(error, asyncio.CancelledError) or not self._cancelled:
            return False
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return True

    @contextmanager
    def watching(self, *, signals: bool, timeout: float | None) -> Iterator[None]:
        """While a run is executed: heed signals and time."""
        self.reason = None
        self._loop = asyncio.get_running_loop()
        clock = None
        if timeout is not None:
            message = f"{timeout:g} s have passed"
            clock = self._loop.call_later(timeout, self.request, "timeout", message)
        try:
            with on_signals(self._heard, signals):
                yield
        finally:
            if clock is not None:
                clock.cancel()
            self._stop_hurrying()
            self._loop = None

    @contextmanager
    def within(self, outer: StopRequests) -> Iterator[None]:
        """While a run is executed inside another: what stops that one stops this one."""
        with self.watching(signals=False, timeout=None):
            self.reason = outer.reason
            outer.children.append(self)
            try:
                yield
            finally:
                outer.children.remove(self)

    def _heard(self, number: int) -> None:
        self.request("signal", signal.Signals(number).name)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
