"""Leaving a run: from then on its code executes and records nothing.

A run is left once it waits, stops, is cancelled, does not fit or cannot be recorded.

Whatever user code catches, further recorded calls raise the same signal again, execute nothing and
record nothing. That holds for the branch that got the signal, for all code around it, and for tasks
while they are cancelled; sibling branches, and calls that have begun, finish.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from surehold.errors import ShapeError, Signal

if TYPE_CHECKING:
    from surehold.engine.runs.positions import CallContext
    from surehold.engine.runs.stop import StopRequests


class Leaving:
    """The signals with which a run is left, and the calls that follow failures."""

    def __init__(self, stop: StopRequests) -> None:
        self._stop = stop
        self.signals: dict[CallContext | None, BaseException] = {}
        """The signals by branch, None for all of them; empty until the run is being left."""
        self._body: object = None
        self._cancelled_before = 0
        """The cancellations of the body's task that came before the run."""
        self._count = 0
        self._last: dict[object, int] = {}
        """The newest call of each task or thread."""
        self._failed: dict[str, tuple[int, object]] = {}

    def enter(self) -> None:
        """Make the running task or thread the run's body."""
        self._body = running_task()
        if isinstance(self._body, asyncio.Task):
            _let_groups_take_back()
            self._cancelled_before = self._body.cancelling()

    @property
    def signal(self) -> BaseException | None:
        """The first signal with which the run is left, or its cancellation."""
        first = next(iter(self.signals.values()), None)
        return first or self._stop.hidden or self._cancellation_of(self._body)

    @property
    def is_beside(self) -> bool:
        """True in a task beside that of the run's body."""
        task = _task()
        return task is not None and task is not self._body

    def _cancellation_of(self, task: object) -> BaseException | None:
        """The cancellation that *task* has not taken back, as a timeout of its own would."""
        if not isinstance(task, asyncio.Task):
            return None
        before = self._cancelled_before if task is self._body else 0
        return asyncio.CancelledError() if task.cancelling() > before else None

    def mark(self, error: BaseException, branch: CallContext | None = None) -> BaseException:
        """Leave the run with *error*, which is to be raised now, in all branches or one."""
        self.signals.setdefault(None if isinstance(error, ShapeError) else branch, error)
        return error

    def check(self, branch: CallContext) -> None:
        """Raise the signal again if *branch*, or code inside it, left the run.

        A task that is cancelled gets its cancellation again.
        """
        for origin, error in self.signals.items():
            if origin is None or origin.is_within(branch):
                raise error
        task = _task()
        if task is not None and (cancelled := self._cancellation_of(task)) is not None:
            raise cancelled

    def check_body(self) -> None:
        """Raise the first signal, whichever branch got it and whoever hid it."""
        if (left := self.signal) is not None:
            raise left

    def withdraw(self, branch: CallContext | None, error: BaseException | None) -> None:
        """Take back the signals of *branch*, which lost a race: the run is not left by it.

        It ended with *error*, the signal of a call that was made for it outside of it.
        """
        for origin, signal in [*self.signals.items()]:
            inside = origin is not None and branch is not None and origin.is_within(branch)
            if inside or signal is error:
                del self.signals[origin]

    def ended_by(self, error: BaseException) -> BaseException:
        """The reason that the run ends: its signal, whatever user code made of that."""
        wins = isinstance(error, Exception | Signal | BaseExceptionGroup)
        return self.signal or error if wins else error

    # Failures and what follows them

    def called(self) -> None:
        """Note that a recorded call begins, or is replayed."""
        self._count += 1
        self._last[running_task()] = self._count

    def failed(self, id: str) -> None:
        """Note that a recorded call raises its failure now."""
        self._failed[id] = self._count, running_task()

    def followed(self, ids: Iterable[str]) -> bool:
        """True if recorded calls came after a failure, in its task or the body."""
        return any(
            max(self._last.get(where, 0), self._last.get(self._body, 0)) > count
            for count, where in (self._failed[id] for id in ids if id in self._failed)
        )


@functools.cache
def _let_groups_take_back() -> None:
    """Let a `TaskGroup` take back its cancellation of its task, as 3.13 does.

    Before 3.13 (gh-116720), a task whose group fails at the end of its block counts as cancelled
    for ever, also if the code handles the failure: it could make no further recorded call.
    """
    if sys.version_info >= (3, 13):
        return
    group: Any = asyncio.TaskGroup
    leave = group.__aexit__

    @functools.wraps(leave)
    async def __aexit__(self: Any, *how: Any) -> None:
        before = self._parent_cancel_requested
        try:
            await leave(self, *how)
        finally:
            if self._parent_cancel_requested and not before:
                self._parent_task.uncancel()

    group.__aexit__ = __aexit__


def running_task() -> Hashable:
    """The task that is running, or the thread if that has none."""
    return _task() or threading.current_thread()


def _task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
