"""The arguments of a call, as a person reads them to say whether it happened."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from surehold.engine.hooks import HookManager, redacted, without_secrets
from surehold.engine.runs.effects.error_text import failure_text

_MOST = 300
"""Characters of all arguments together."""
_TEXT = 80
"""Characters of a text that are shown."""
_SEARCHED = 10_000
"""Characters of a text that are searched for secrets, so that none is cut in two."""
_FEW = 8
_DEEPEST = 3
_SHOWN = (bool, int, float, complex, Decimal, date, time, timedelta, UUID, PurePath, Enum)


def inputs_text(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    hooks: HookManager | None,
) -> str:
    """The arguments of a call, short and without secrets.

    Secrets are found by form and by the names of parameters and keys, as a `RedactionHook` does,
    with those that a hook of the run finds. Objects of unknown classes are shown by their class
    alone. If redaction fails, nothing is shown.

    >>> inputs_text(lambda invoice, api_key: 0, (2, "sk-1"), {}, None)
    "invoice=2, api_key='[redacted:api_key]'"
    """
    try:
        named = {name: _brief(value, 0) for name, value in _named(fn, args, kwargs)}
        clean = redacted(without_secrets(named), hooks)
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in clean.items())
        return failure_text(shown, hooks, _MOST)
    except Exception:  # a class of the user's, or of a hook
        return ""


def _named(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        places = inspect.signature(fn).parameters.values()
        names = [
            one.name
            for one in places
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    names += [f"argument {number + 1}" for number in range(len(names), len(args))]
    return [*zip(names, args, strict=False), *kwargs.items()]


def _brief(value: Any, depth: int) -> Any:
    """*value* as plain containers and texts that are not too large."""
    if value is None or isinstance(value, _SHOWN):
        return value
    if isinstance(value, str):
        return value[:_SEARCHED]
    if isinstance(value, bytes | bytearray):
        return _Word(f"<{len(value)} bytes>")
    if depth < _DEEPEST:
        if isinstance(value, Mapping):
            return {_key(key): _brief(one, depth + 1) for key, one in islice(value.items(), _FEW)}
        if isinstance(value, list | tuple | set | frozenset):
            some = [_brief(one, depth + 1) for one in islice(value, _FEW)]
            return some if len(value) <= _FEW else [*some, _Word(f"… {len(value)} in all")]
        if (inside := _fields_of(value)) is not None:
            return {name: _brief(one, depth + 1) for name, one in islice(inside.items(), _FEW)}
    return _Word(f"<{type(value).__name__}>")


def _key(key: Any) -> Any:
    return key[:_TEXT] if isinstance(key, str) else _Word(str(_brief(key, _DEEPEST)))


def _fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of an object of a class of fields."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return {one.name: getattr(value, one.name, None) for one in fields(value) if one.repr}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name, None) for name in value.__struct_fields__}
    if isinstance(getattr(type(value), "model_fields", None), dict):
        return {name: getattr(value, name, None) for name in type(value).model_fields}
    return None


class _Word(str):
    """A text that is shown without quotes."""


def _shown(value: Any) -> str:
    if isinstance(value, _Word):
        return str(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _TEXT else value[: _TEXT - 1] + "…")
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value) if value is None or isinstance(value, bool | int | float) else str(value)
