"""The place of the running code: context variables, and tasks of other frameworks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Context, ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class during(AbstractContextManager[None], Generic[T]):
    """Give *variable* a value for the block; each recorded call has one."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def undo_set(variable: ContextVar[T], token: Token[T], value: T) -> None:
    """Undo the `set` of *value* that gave *token*, perhaps in another context.

    A block may be left in another thread or task than it was entered in: the fixtures of tests
    and the dependencies of web frameworks are. A copy of the context has the value as well.
    """
    try:
        variable.reset(token)
    except ValueError:
        if variable.get() is value:
            unset = token.old_value is Token.MISSING
            variable.set(Context().run(variable.get) if unset else token.old_value)


FrameworkTask = tuple[object, Callable[[], Any]]
"""A task of a framework that the running code is in, and what gives the positions of its calls."""

FRAMEWORKS: list[Callable[[], FrameworkTask | None]] = []
"""Functions that find such a task, of each framework whose runs record their calls."""


def framework_task() -> FrameworkTask | None:
    """The task of a framework that the running code is in; None outside of all."""
    return next((found for find in FRAMEWORKS if (found := find()) is not None), None)
