"""Objects of a user's class as values that can be stored, and back.

Only the fields of an object are stored. Decoding sets them without calling ``__init__``, so the
object comes back with its stored values whatever the constructor does by now. A field that the
class has gained since gets its default. A stored field that the class no longer has is an error:
nothing is left out silently.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from enum import Enum, Flag
from functools import cached_property
from typing import Any

import msgspec

from surehold.core.values.classes import is_numpy, pandas_name
from surehold.core.values.frames import pandas_parts
from surehold.errors import EncodeError, UsageError


class ObjectParts(msgspec.Struct, frozen=True):
    """Splits objects of one class into parts, and rebuilds them."""

    take: Callable[[Any], Any]
    make: Callable[[Any], Any]
    live: bool = True
    """True if such an object may change."""


def parts_of(cls: Any) -> ObjectParts:
    """The parts of an object that is made of fields, or of a value of numpy or pandas."""
    if is_numpy(cls):
        return _numpy_parts(cls)
    if pandas_name(cls):
        return ObjectParts(*pandas_parts(cls))
    if issubclass(cls, Flag):
        return ObjectParts(lambda value: value.value, cls, live=False)
    if issubclass(cls, Enum):
        return ObjectParts(lambda value: value.name, lambda name: cls[name], live=False)
    if issubclass(cls, msgspec.Struct):
        return _struct_parts(cls)
    if hasattr(cls, "model_fields") and hasattr(cls, "__pydantic_fields__"):
        return _pydantic_parts(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_parts(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_parts(cls)
    raise UsageError(
        f"{cls.__qualname__} is not an enum, dataclass, msgspec.Struct or pydantic model",
        hint="pass encode= and decode=",
    )


def _no_place(names: Iterable[str]) -> ValueError:
    return ValueError(f"the class has no field {', '.join(map(repr, names))}")


def _not_set(name: str) -> EncodeError:
    return EncodeError(f"the field {name!r} is not set")


def _missing(name: str) -> ValueError:
    return ValueError(f"the field {name!r} has no stored value and no default")


UNDECLARED = ""
"""The part that holds an object's attributes that are not fields; no field has this name."""


def _undeclared(cls: Any, value: Any, fields: Iterable[str]) -> dict[str, Any]:
    """The attributes that are not fields of the class, and no cached properties."""
    own: dict[str, Any] = getattr(value, "__dict__", {})
    return {
        name: item
        for name, item in own.items()
        if name not in fields and not isinstance(getattr(cls, name, None), cached_property)
    }


def fields_in(parts: Any) -> Any:
    """The fields of an object whose class is not known, by its parts.

    A dict; of a named tuple its items, and of an enum the name of its member.
    """
    if not isinstance(parts, dict):
        return parts
    if {"fields", "set"} <= parts.keys():  # of a pydantic model
        return {**parts.get("extra", {}), **parts["fields"], **parts.get(UNDECLARED, {})}
    return {k: v for k, v in parts.items() if k != UNDECLARED} | parts.get(UNDECLARED, {})


def _named_tuple_parts(cls: Any) -> ObjectParts:
    def take(value: Any) -> list[Any]:
        if names := [*_undeclared(cls, value, ())]:
            raise EncodeError(
                f"{cls.__qualname__} has the attribute {names[0]!r}, which is not a field",
                hint=f"make {names[0]!r} a field, or store a dataclass",
            )
        return list(value)

    def make(items: list[Any]) -> Any:
        if len(items) != len(cls._fields):
            raise ValueError(f"the class has {len(cls._fields)} fields, not {len(items)}")
        return tuple.__new__(cls, items)

    return ObjectParts(take, make)


_DTYPE = re.compile(r"[<>|=][biufcSUMm]\d+(\[\d*[a-zA-Z]+\])?")
"""Stored kinds of numbers, texts and times; others refer to Python objects or have fields."""


def _numpy_parts(cls: Any) -> ObjectParts:
    """The type, form and bytes of an array; a scalar is an array without dimensions."""
    numpy = sys.modules["numpy"]
    is_array = cls is numpy.ndarray

    def take(value: Any) -> list[Any]:
        if not _DTYPE.fullmatch(value.dtype.str) or value.dtype.metadata:
            raise EncodeError(
                f"a {cls.__qualname__} of {value.dtype} cannot be stored",
                hint="store value.tolist(), or an array of numbers, texts or times",
            )
        return [value.dtype.str, list(value.shape), value.tobytes()]

    def make(parts: list[Any]) -> Any:
        dtype, shape, body = parts
        if not _DTYPE.fullmatch(dtype):
            raise ValueError(f"{dtype!r} is not a type of numbers, texts or times")
        made = numpy.ndarray(tuple(shape), dtype, body)
        return made.copy() if is_array else made[()]

    return ObjectParts(take, make, live=is_array)


def _dataclass_parts(cls: Any) -> ObjectParts:
    try:
        object.__new__(cls)
    except TypeError as error:
        raise UsageError(
            f"{cls.__qualname__} cannot be stored by its fields alone: {error}",
            hint="pass encode= and decode=",
        ) from error
    fields = {field.name: field for field in dataclasses.fields(cls)}

    def take(value: Any) -> dict[str, Any]:
        parts = {name: getattr(value, name) for name in fields if hasattr(value, name)}
        for name, field in fields.items():
            if field.init and name not in parts:
                raise _not_set(name)
        if more := _undeclared(cls, value, fields):
            parts[UNDECLARED] = more
        return parts

    def make(parts: dict[str, Any]) -> Any:
        made = object.__new__(cls)
        for name, item in parts.pop(UNDECLARED, {}).items():
            object.__setattr__(made, name, item)
        for name, item in parts.items():
            object.__setattr__(made, name, item)
        if parts.keys() != fields.keys():
            _fill(made, parts, fields)
        return made

    return ObjectParts(take, make)


def _fill(made: Any, parts: dict[str, Any], fields: dict[str, dataclasses.Field[Any]]) -> None:
    """Set the fields that have no stored value to their defaults."""
    if not parts.keys() <= fields.keys():
        raise _no_place(parts.keys() - fields.keys())
    for name, field in fields.items():
        if name not in parts:
            if field.default is not dataclasses.MISSING:
                object.__setattr__(made, name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(made, name, field.default_factory())
            elif field.init:
                raise _missing(name)


def _struct_parts(cls: Any) -> ObjectParts:
    names = cls.__struct_fields__
    put = msgspec.structs.force_setattr

    def take(value: Any) -> dict[str, Any]:
        try:
            parts = {name: getattr(value, name) for name in names}
        except AttributeError as error:
            raise EncodeError(f"a field is not set: {error}") from None
        if more := _undeclared(cls, value, names):
            parts[UNDECLARED] = more
        return parts

    def make(parts: dict[str, Any]) -> Any:
        more = parts.pop(UNDECLARED, {})
        made = cls(**parts)
        for name, item in more.items():
            put(made, name, item)
        # A struct can only be made by calling its class: undo what that has changed.
        if hasattr(cls, "__post_init__"):
            for name, item in parts.items():
                put(made, name, item)
        return made

    return ObjectParts(take, make)


def _pydantic_parts(cls: Any) -> ObjectParts:
    def take(value: Any) -> dict[str, Any]:
        state = value.__getstate__()
        values = state["__dict__"]
        for name in cls.model_fields:
            if name not in values:
                raise _not_set(name)
        parts = {
            "fields": {name: values[name] for name in cls.model_fields},
            "set": sorted(state["__pydantic_fields_set__"]),
        }
        if more := _undeclared(cls, value, cls.model_fields):
            parts[UNDECLARED] = more
        for name in ("extra", "private"):
            if state.get(f"__pydantic_{name}__") is not None:
                parts[name] = state[f"__pydantic_{name}__"]
        return parts

    def make(parts: dict[str, Any]) -> Any:
        values = dict(parts["fields"])
        if not values.keys() <= cls.model_fields.keys():
            raise _no_place(values.keys() - cls.model_fields.keys())
        for name, field in cls.model_fields.items():
            if name not in values:
                if field.is_required():
                    raise _missing(name)
                values[name] = field.get_default(call_default_factory=True)
        values.update(parts.get(UNDECLARED, {}))
        made = cls.__new__(cls)
        made.__setstate__(
            {
                "__dict__": values,
                "__pydantic_fields_set__": set(parts["set"]),
                "__pydantic_extra__": dict(parts["extra"]) if "extra" in parts else None,
                "__pydantic_private__": dict(parts["private"]) if "private" in parts else None,
            }
        )
        return made

    return ObjectParts(take, make)
