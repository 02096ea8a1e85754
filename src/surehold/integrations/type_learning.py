"""Registers classes with the codec when values of them are first saved.

Users of a framework put objects of their own classes into the state without registering them.
Saving such a value registers its class, if it is made of fields. Reading never registers: a name in
stored data is looked up in the registry and nowhere else. Ordinary objects that consist of their
attributes can be registered too, where a framework stores such objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from threading import Lock
from typing import Any

import msgspec

from surehold.core.values import encode, register_type
from surehold.errors import EncodeError, UsageError

_DEEPEST = 100


def type_name(cls: type) -> str:
    """The stored name of an adopted class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def encode_adopting(value: Any, *, objects: bool = False) -> bytes:
    """Encode *value*, registering the classes in it that can be registered."""
    while True:
        known = len(_adopted)
        try:
            return encode(value)
        except EncodeError:
            adopt(_classes_in(value), objects=objects)
            if len(_adopted) == known:  # and no other thread has just adopted them
                raise


def adopt(classes: Iterable[type], *, objects: bool = False) -> None:
    """Register the *classes* of fields; with *objects*, also those of attributes."""
    for cls in classes:
        if cls in _adopted or not (_has_fields(cls) or (objects and _is_its_attributes(cls))):
            continue
        with _adopting:
            # The user may have registered it, or it is more than its fields and cannot be.
            with suppress(UsageError):
                _register(cls)
            _adopted.add(cls)


def adopt_named(classes: Iterable[type]) -> None:
    """Register *classes*; a class without fields is a `UsageError`."""
    for cls in classes:
        if not _has_fields(cls):
            raise UsageError(
                f"{cls.__qualname__} is not made of fields, so it cannot be in types=",
                hint="surehold.register_type(cls, encode=..., decode=...)",
            )
        adopt([cls])


_adopted: set[type] = set()
_adopting = Lock()


def _register(cls: Any) -> None:
    name = type_name(cls)
    if issubclass(cls, tuple):
        register_type(cls, name, encode=list, decode=lambda items: tuple.__new__(cls, items))
    elif _has_fields(cls):
        register_type(cls, name)
    else:
        register_type(cls, name, encode=_attributes, decode=lambda parts: _object(cls, parts))


def _has_fields(cls: type) -> bool:
    return (
        issubclass(cls, Enum | msgspec.Struct)
        or dataclasses.is_dataclass(cls)
        or hasattr(cls, "__pydantic_fields__")
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _is_its_attributes(cls: Any) -> bool:
    """True if copying its attributes copies an object of *cls*."""
    if (
        cls.__module__ == "builtins"
        or issubclass(cls, type | BaseException)
        or cls.__reduce_ex__ is not object.__reduce_ex__
        or cls.__reduce__ is not object.__reduce__
    ):
        return False
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def _attributes(value: Any) -> dict[str, Any]:
    state = value.__getstate__()
    parts = state if isinstance(state, tuple) else (state,)
    found = {name: item for part in parts if part for name, item in part.items()}
    found.pop("__orig_class__", None)  # which types a generic class was called with
    return found


def _object(cls: type, parts: dict[str, Any]) -> Any:
    made: Any = object.__new__(cls)
    if hasattr(cls, "__setstate__"):
        made.__setstate__(parts)
        return made
    for name, item in parts.items():
        object.__setattr__(made, name, item)
    return made


def _classes_in(value: Any) -> Iterator[type]:
    """The classes of *value* and of everything in it."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in seen or depth > _DEEPEST:
            continue
        seen.add(id(one))
        yield type(one)
        waiting += ((part, depth + 1) for part in _parts(one))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | Enum):
        return ()
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    own = [getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)]
    return [*own, *getattr(value, "__dict__", {}).values()]
