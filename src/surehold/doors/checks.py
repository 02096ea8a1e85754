"""Checks of configuration values at construction, by the name of the field."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from surehold.errors import UsageError

_SCALARS = (bool, int, float, str, type(None))


def check_fields(config: Any) -> None:
    """Raise a `UsageError` for the first field that does not fit its annotation.

    Only scalars, literals and unions of them are checked; protocols and callables are not.
    """
    cls: Any = type(config)
    for name, kind in _kinds(cls):
        value = getattr(config, name)
        try:
            if value is not msgspec.UNSET:
                msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{name} is {value!r}", hint=_wanted(kind, str(error)), field=name
            ) from None


def _wanted(kind: Any, problem: str) -> str:
    choices = [one for part in (kind, *typing.get_args(kind)) for one in _literals(part)]
    return f"one of {', '.join(choices)}" if choices else problem.replace("`", "").lower()


def _literals(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


@functools.cache
def _kinds(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    names = getattr(cls, "__dataclass_fields__", None) or cls.__struct_fields__
    return tuple((name, hints[name]) for name in names if _is_checkable(hints[name]))


def _is_checkable(kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return True
    if hasattr(kind, "__metadata__"):
        return _is_checkable(typing.get_args(kind)[0])
    parts = typing.get_args(kind)
    return all(map(_is_checkable, parts)) if parts else kind in _SCALARS


def check_keys(cls: Any, mapping: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return *mapping* as arguments of *cls*; an unknown key is a `UsageError`."""
    known = [*cls.__dataclass_fields__]
    for name in mapping:
        if name not in known:
            raise UsageError(
                f"a {what} configuration has no {name!r}", hint=f"it has: {', '.join(known)}"
            )
    return dict(mapping)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of *function* gives a coroutine."""
    called = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def truth_of(value: Any, problem: str, hint: str) -> bool:
    """The truth of a function's result; a `UsageError` if it would have to be awaited."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise UsageError(problem, hint=hint)
    return bool(value)


def check_task(task: Any) -> None:
    """Refuse a task that is not a text, before anything is saved."""
    if not isinstance(task, str):
        raise UsageError(f"the task is {task!r:.40}", hint="give a text")


def check_listener(function: Any) -> None:
    """Refuse an `on_event` that is not a plain function: nothing would await it."""
    if function is not None and (not callable(function) or is_async(function)):
        raise UsageError(f"on_event is {function!r}", hint="give a plain function of an event")
