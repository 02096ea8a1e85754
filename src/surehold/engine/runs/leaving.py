"""Leaving a run: once it waits, stops or does not fit, its code does nothing more.

Whatever user code catches, further recorded calls raise the same signal again, execute nothing and
record nothing. That holds for the task or thread that got the signal, and for the run's body;
sibling branches finish.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from surehold.errors import ShapeError, Signal


class Leaving:
    """The signals with which a run is left, and the calls that follow failures."""

    def __init__(self) -> None:
        self.signals: dict[object, BaseException] = {}
        """The signals by task or thread; empty until the run is being left."""
        self._body: object = None
        self._count = 0
        self._last: dict[object, int] = {}
        """The newest call of each task or thread."""
        self._failed: dict[str, tuple[int, object]] = {}

    def enter(self) -> None:
        """Make the running task or thread the run's body."""
        self._body = _here()

    @property
    def signal(self) -> BaseException | None:
        """The first signal with which the run is being left."""
        return next(iter(self.signals.values()), None)

    def mark(self, error: BaseException) -> BaseException:
        """Leave the run with *error*, which is to be raised now."""
        everyone = isinstance(error, ShapeError)
        self.signals.setdefault(None if everyone else _here(), error)
        return error

    def check(self) -> None:
        """Raise the signal again if this task, or the body of the run, is leaving it."""
        if not self.signals:
            return
        here = _here()
        left = self.signals.get(None) or (
            self.signal if here == self._body else self.signals.get(here)
        )
        if left is not None:
            raise left

    def hand_over(self) -> None:
        """Let the running task begin work of another branch; the run still waits."""
        left = self.signals.pop(_here(), None)
        if left is not None:
            self.signals[object()] = left

    def ended_by(self, error: BaseException) -> BaseException:
        """The reason that the run ends: its signal, whatever user code made of that."""
        wins = isinstance(error, Exception | Signal | BaseExceptionGroup)
        return self.signal or error if wins else error

    # Failures and what follows them

    def called(self) -> None:
        """Note that a recorded call begins, or is replayed."""
        self._count += 1
        self._last[_here()] = self._count

    def failed(self, id: str) -> None:
        """Note that a recorded call raises its failure now."""
        self._failed[id] = self._count, _here()

    def followed(self, ids: Iterable[str]) -> bool:
        """True if recorded calls came after a failure, in its task or the body."""
        return any(
            max(self._last.get(where, 0), self._last.get(self._body, 0)) > count
            for count, where in (self._failed[id] for id in ids if id in self._failed)
        )


def _here() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()
