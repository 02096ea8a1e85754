"""Making a value equal to another in place, because code may hold its parts."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import msgspec

from surehold.core.values.classes import is_numpy
from surehold.core.values.codec import encode


def put_back(now: Any, saved: Any) -> Any:
    """Make *now* equal *saved* where its type can change; the value that is equal.

    The containers, arrays and objects of fields inside of it stay the same objects.
    """
    cls = type(now)
    if cls is not type(saved):
        return saved
    if isinstance(now, dict):
        made = {key: put_back(now.get(key), value) for key, value in saved.items()}
        now.clear()
        now.update(made)
    elif isinstance(now, list) or (isinstance(now, deque) and now.maxlen == saved.maxlen):
        known = [*now, *[None] * (len(saved) - len(now))]
        items = [put_back(old, new) for old, new in zip(known, saved, strict=False)]
        now.clear()
        now.extend(items)
    elif isinstance(now, tuple) and len(now) == len(saved):
        items = [put_back(old, new) for old, new in zip(now, saved, strict=True)]
        return tuple.__new__(cls, items)
    elif isinstance(now, set):
        now.clear()
        now.update(saved)
    elif isinstance(now, bytearray):
        now[:] = saved
    elif is_numpy(cls):
        if now.shape != saved.shape or now.dtype != saved.dtype or not now.flags.writeable:
            return saved
        now[...] = saved
    elif (names := _fields_that_change(cls)) is not None:
        _put_back_fields(now, saved, names)
    elif encode(now) != encode(saved):
        return saved
    return now


def _fields_that_change(cls: Any) -> set[str] | None:
    """The fields of a class whose objects may change, None for any other class."""
    if issubclass(cls, msgspec.Struct):
        return None if cls.__struct_config__.frozen else {*cls.__struct_fields__}
    if hasattr(cls, "__pydantic_fields__"):
        return None if cls.model_config.get("frozen") else {*cls.model_fields, *_PYDANTIC}
    made_by = getattr(cls, "__dataclass_params__", None)
    if made_by is None or made_by.frozen:
        return None
    return {field.name for field in dataclasses.fields(cls)}


_PYDANTIC = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def _put_back_fields(now: Any, saved: Any, names: set[str]) -> None:
    put: Any = object.__setattr__
    if isinstance(now, msgspec.Struct):
        put = msgspec.structs.force_setattr
    own: dict[str, Any] = getattr(now, "__dict__", {})
    kept = [name for name in names | {*getattr(saved, "__dict__", {})} if hasattr(saved, name)]
    made = {name: put_back(getattr(now, name, None), getattr(saved, name)) for name in kept}
    own.clear()
    for name, value in made.items():
        put(now, name, value)
