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

from holdfast.errors import UsageError

T = TypeVar("T")
_MANY = 64


class _Created:
    """The awaitable calls that a block has created, but for those that began."""

    __slots__ = ("_limit", "calls")

    def __init__(self) -> None:
        self.calls: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        self._limit = _MANY

    def add(self, what: str, made: Coroutine[Any, Any, Any]) -> None:
        """Remember a call, and now and then drop those that began."""
        if len(self.calls) >= self._limit:
            self.calls = self.left()
            self._limit = max(_MANY, 2 * len(self.calls))
        self.calls.append((what, made))

    def left(self) -> list[tuple[str, Coroutine[Any, Any, Any]]]:
        """The calls that nothing has awaited yet."""
        return [one for one in self.calls if _is_unawaited(one[1])]


_CREATED: ContextVar[_Created | None] = ContextVar("holdfast_created", default=None)
"""The calls of the innermost code of a run."""


def to_await(what: str, made: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """*made*, which the running code must await; *what* names it in the error if not."""
    created = _CREATED.get()
    if created is not None:
        created.add(what, made)
    return made


class AwaitsAll:
    """A block of user code whose awaitable calls must all be awaited when it ends."""

    __slots__ = ("_created", "_token")

    def __enter__(self) -> Self:
        self._created = _Created()
        self._token: Token[_Created | None] = _CREATED.set(self._created)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _CREATED.reset(self._token)
        left = self._created.left()
        for _, made in left:
            made.close()
        if left and error is None:
            raise UsageError(
                f"{', '.join(what for what, _ in left[:3])} was called and not awaited,"
                " so it did not happen",
                hint="write `await` before the call, in an async function",
            )


def _is_unawaited(made: Coroutine[Any, Any, Any]) -> bool:
    return inspect.iscoroutine(made) and inspect.getcoroutinestate(made) == inspect.CORO_CREATED
