"""Calls that must be awaited, and a clear error where `await` was forgotten.

Python says no more of a coroutine that is never awaited than a warning, and the payment in it is
not made. So the code of a run (a node, a step, a tool, a workflow, a block) ends with an error if
it leaves one behind.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from contextvars import ContextVar, Token
from typing import Any, Self, TypeVar

from surehold.core.context import undo_set
from surehold.errors import UsageError

T = TypeVar("T")
_MANY = 64


class AwaitsAll:
    """A block of user code whose awaitable calls must all be awaited when it ends.

    A context *variable* that is given has *value* in the block.
    """

    __slots__ = ("_calls", "_limit", "_outer", "_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any] | None = None, value: object = None) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> Self:
        self._calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._limit = _MANY
        if self._variable is not None:
            self._outer: Token[Any] = self._variable.set(self._value)
        self._token: Token[AwaitsAll | None] = _INNERMOST.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        undo_set(_INNERMOST, self._token, self)
        if self._variable is not None:
            self._variable.reset(self._outer)
        if not self._calls:
            return
        left = self._left()
        for _, made in left:
            made.close()
        if left and error is None:
            raise UsageError(
                f"{', '.join(what for what, _ in left[:3])} was called and not awaited,"
                " so it did not happen",
                hint="write `await` before the call, in an async function",
            )

    def add(self, what: str, made: Coroutine[Any, Any, Any]) -> None:
        """Remember a call, and now and then drop those that began."""
        if len(self._calls) >= self._limit:
            self._calls = self._left()
            self._limit = max(_MANY, 2 * len(self._calls))
        self._calls.append((what, made))

    def _left(self) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
        """The calls that nothing has awaited yet."""
        return [one for one in self._calls if _is_unawaited(one[1])]


_INNERMOST: ContextVar[AwaitsAll | None] = ContextVar("surehold_awaits", default=None)
"""The block of the innermost code of a run."""


def to_await(what: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """*made*, which the running code must await; *what* names it in the error if not."""
    block = _INNERMOST.get()
    if block is not None:
        block.add(what, made)
    return made


def _is_unawaited(made: Coroutine[Any, Any, Any]) -> bool:
    return inspect.iscoroutine(made) and inspect.getcoroutinestate(made) == inspect.CORO_CREATED
