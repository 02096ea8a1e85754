"""A request to stop whatever run is executed in a block, made from outside of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

from surehold.core.context import during


class StopScope:
    """Stops the graph, agent, fleet or durable function that is executed within it.

    It stops at its next step and is saved as ``interrupted``. Several executions may follow one
    another in one scope; once it is stopped, each stops at its first step.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        """The reason of the request; None before there is one."""
        self._lock = threading.Lock()
        self._members: list[Callable[[str], None]] = []

    def stop(self, message: str) -> None:
        """Ask for it; from any thread."""
        with self._lock:
            if self.message is not None:
                return
            self.message = message
            members = [*self._members]
        for member in members:
            member(message)

    def add(self, member: Callable[[str], None]) -> None:
        """Have *member* called when the stop is asked for: now, if it was already."""
        with self._lock:
            self._members.append(member)
            message = self.message
        if message is not None:
            member(message)

    def remove(self, member: Callable[[str], None]) -> None:
        """Call it no longer."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def entered(self) -> AbstractContextManager[None]:
        """Have what is executed in this block stop with the scope."""
        return during(_scope, self)


_scope: ContextVar[StopScope | None] = ContextVar("surehold_stop_scope", default=None)


def current_stop_scope() -> StopScope | None:
    """The scope around the running code."""
    return _scope.get()
