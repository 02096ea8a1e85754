"""Values as JSON text and back, every one as the type it was.

What JSON cannot say carries a tag: ``{"$t": "datetime", "v": "2026-11-15T20:21:19+00:00"}``. A
user's own dict that has a ``$t`` key is written as tagged pairs, so it cannot be mistaken for a
tag. Classes of the user's own are registered in code; the decoder looks names up in that registry
and nowhere else, so no text can make it import or call anything.

>>> text = encode({"when": (1, 2), "$t": "mine"})
>>> decode(text)
{'when': (1, 2), '$t': 'mine'}
"""

from __future__ import annotations

import dataclasses
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeVar
from threading import Lock
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from holdfast.core.frozen import (
    FrozenDict,
    FrozenList,
    FrozenSet,
    Nature,
    at_path,
    freeze,
    nature_of,
    unknown_type,
)
from holdfast.errors import DecodeError, EncodeError, UsageError

__all__ = [
    "Opaque",
    "UnknownTypeWarning",
    "decode",
    "encode",
    "encode_tree",
    "from_tree",
    "parse",
    "register_type",
    "take_in",
    "weigh",
]

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
encode_tree: Callable[[Any], bytes] = _encoder.encode
"""JSON text of a tree that is already tagged."""
_decoder = msgspec.json.Decoder()


class UnknownTypeWarning(UserWarning):
    """A stored value has a type tag that no code has registered; it is kept as `Opaque`."""


class Opaque(msgspec.Struct, frozen=True):
    """A stored value of a type that is not registered here, kept as it was found."""

    tag: str
    tree: Any


class _Type(msgspec.Struct, frozen=True):
    name: str
    cls: type
    to_tree: Callable[[Any], Any]
    from_tree: Callable[[Any, bool], Any]
    live: bool


_by_class: dict[type, _Type] = {}
_by_name: dict[str, _Type] = {}
_registering = Lock()


def register_type(
    cls: type[T],
    name: str | None = None,
    *,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]:
    """Let values of *cls* be stored, under *name* (by default the class's qualified name).

    Enums, dataclasses, `msgspec.Struct` and pydantic models need nothing more. Any other class
    needs *encode* (to something storable) and *decode* (back). It can be used as a decorator.

    >>> import dataclasses
    >>> @register_type
    ... @dataclasses.dataclass
    ... class Point:
    ...     x: int
    ...     y: int
    >>> decode(globals()["encode"](Point(1, 2)))
    Point(x=1, y=2)
    """
    name = name or cls.__qualname__
    if (encode is None) != (decode is None):
        raise UsageError("encode and decode go together", hint="give both, or neither")
    if encode is not None and decode is not None:
        write, read = encode, decode
        entry = _Type(
            name, cls, lambda v: to_tree(write(v)), lambda t, f: read(from_tree(t, f)), True
        )
    else:
        entry = _known_shape(cls, name)
    with _registering:
        holder, former = _by_name.get(name), _by_class.get(cls)
        if holder is not None and _identity(holder.cls) != _identity(cls):
            raise UsageError(
                f"the type name {name!r} is taken by {holder.cls.__qualname__}",
                hint="pass another name=",
            )
        if former is not None and former.name != name:
            raise UsageError(f"{cls.__qualname__} is already registered as {former.name!r}")
        _by_name[name] = entry
        _by_class[cls] = entry
    return cls


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _known_shape(cls: type, name: str) -> _Type:
    if issubclass(cls, Enum):
        return _Type(name, cls, lambda v: v.name, lambda t, f: cls[t], False)
    if issubclass(cls, msgspec.Struct):
        fields = cls.__struct_fields__
        return _Type(name, cls, lambda v: _attributes(v, fields), _maker(cls), True)
    if dataclasses.is_dataclass(cls):
        return _dataclass_type(cls, name)
    if hasattr(cls, "model_construct") and hasattr(cls, "__pydantic_fields__"):
        return _pydantic_type(cls, name)
    raise UsageError(
        f"{cls.__qualname__} is no enum, dataclass, msgspec.Struct or pydantic model",
        hint="pass encode= and decode=",
    )


def _attributes(value: Any, names: Any) -> dict[str, Any]:
    return {name: _tree_at(getattr(value, name), name) for name in names}


def _maker(cls: type) -> Callable[[Any, bool], Any]:
    return lambda tree, frozen: cls(**{k: from_tree(v, frozen) for k, v in tree.items()})


def _dataclass_type(cls: type, name: str) -> _Type:
    names = [field.name for field in dataclasses.fields(cls)]

    def make(tree: Any, frozen: bool) -> Any:
        made = cls.__new__(cls)
        for key, item in tree.items():
            object.__setattr__(made, key, from_tree(item, frozen))
        return made

    return _Type(name, cls, lambda v: _attributes(v, names), make, True)


def _pydantic_type(cls: Any, name: str) -> _Type:
    def write(value: Any) -> Any:
        return {
            "fields": {k: _tree_at(v, k) for k, v in {**value.__dict__}.items()},
            "extra": {k: _tree_at(v, k) for k, v in (value.__pydantic_extra__ or {}).items()},
            "set": sorted(value.__pydantic_fields_set__),
        }

    def make(tree: Any, frozen: bool) -> Any:
        values = {k: from_tree(v, frozen) for k, v in {**tree["fields"], **tree["extra"]}.items()}
        return cls.model_construct(_fields_set=set(tree["set"]), **values)

    return _Type(name, cls, write, make, True)


def to_tree(value: Any) -> Any:
    """*value* as a tree that JSON says exactly."""
    write = _WRITERS.get(type(value))
    if write is not None:
        return write(value)
    entry = _by_class.get(type(value))
    if entry is None:
        if isinstance(value, Opaque):
            return {"$t": value.tag, "v": value.tree}
        raise unknown_type(value)
    return {"$t": entry.name, "v": entry.to_tree(value)}


def _tree_at(value: Any, key: object) -> Any:
    try:
        return to_tree(value)
    except EncodeError as error:
        raise at_path(error, key) from None
    except RecursionError:
        raise EncodeError("nested too deep, or contains itself", path="") from None


def _itself(value: Any) -> Any:
    return value


def _write_str(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$t": "str", "v": b64encode(value.encode("utf-16-le", "surrogatepass")).decode()}
    return value


def _write_int(value: int) -> Any:
    return value if -(1 << 63) <= value < 1 << 64 else {"$t": "int", "v": hex(value)}


def _write_float(value: float) -> Any:
    if value - value == 0:
        return value
    return {"$t": "float", "v": "nan" if value != value else "inf" if value > 0 else "-inf"}


def _write_dict(value: dict[Any, Any]) -> Any:
    if "$t" not in value and all(type(k) is str and _write_str(k) is k for k in value):
        return {k: _tree_at(v, k) for k, v in value.items()}
    pairs = [[_tree_at(k, k), _tree_at(v, k)] for k, v in value.items()]
    return {"$t": "dict", "v": pairs}


def _write_list(value: Any) -> Any:
    return [_tree_at(item, index) for index, item in enumerate(value)]


def _tagged(tag: str, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {"$t": tag, "v": write(value)}


def _write_set(value: Any) -> Any:
    return sorted(_write_list(value), key=encode_tree)


def _write_moment(value: Any) -> Any:
    """A datetime or time as text; a named zone and a fold go beside it."""
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone and type(zone) is not ZoneInfo:
        raise unknown_type(zone)
    text = value.replace(fold=0).isoformat()
    named = type(zone) is ZoneInfo
    if not named and not value.fold:
        return text
    if named and zone.key is None:
        raise EncodeError("a ZoneInfo made from a file has no name to store", path="")
    if named:
        text = value.replace(tzinfo=None, fold=0).isoformat()
    return [text, zone.key if named else None, value.fold]


def _read_moment(read: Callable[[str], Any]) -> Callable[[Any, bool], Any]:
    def moment(tree: Any, frozen: bool) -> Any:
        if isinstance(tree, str):
            return read(tree)
        text, zone, fold = tree
        made = read(text).replace(fold=fold)
        return made.replace(tzinfo=ZoneInfo(zone)) if zone else made

    return moment


def _write_timedelta(value: timedelta) -> Any:
    return [value.days, value.seconds, value.microseconds]


_PATHS: dict[str, type[PurePath]] = {
    "path": PosixPath,
    "windows-path": WindowsPath,
    "pure-path": PurePosixPath,
    "pure-windows-path": PureWindowsPath,
}

_WRITERS: dict[type, Callable[[Any], Any]] = {
    type(None): _itself,
    bool: _itself,
    str: _write_str,
    int: _write_int,
    float: _write_float,
    dict: _write_dict,
    FrozenDict: _write_dict,
    list: _write_list,
    FrozenList: _write_list,
    tuple: _tagged("tuple", _write_list),
    set: _tagged("set", _write_set),
    FrozenSet: _tagged("set", _write_set),
    frozenset: _tagged("frozenset", _write_set),
    bytes: _tagged("bytes", lambda value: b64encode(value).decode()),
    datetime: _tagged("datetime", _write_moment),
    date: _tagged("date", date.isoformat),
    time: _tagged("time", _write_moment),
    timedelta: _tagged("timedelta", _write_timedelta),
    Decimal: _tagged("decimal", str),
    UUID: _tagged("uuid", str),
    complex: _tagged("complex", lambda v: [_write_float(v.real), _write_float(v.imag)]),
    **{cls: _tagged(tag, str) for tag, cls in _PATHS.items()},
}


def _read_list(tree: Any, frozen: bool) -> Any:
    return [from_tree(item, frozen) for item in tree]


def _read_set(tree: Any, frozen: bool) -> Any:
    items = _read_list(tree, frozen)
    return FrozenSet.of(items, Nature.TAGGED) if frozen else set(items)


def _read_dict(tree: Any, frozen: bool) -> Any:
    made = {from_tree(k, frozen): from_tree(v, frozen) for k, v in tree}
    return freeze(made, _leaf)[0] if frozen else made


_READERS: dict[str, Callable[[Any, bool], Any]] = {
    "str": lambda tree, frozen: b64decode(tree).decode("utf-16-le", "surrogatepass"),
    "int": lambda tree, frozen: int(tree, 16),
    "float": lambda tree, frozen: float(tree),
    "dict": _read_dict,
    "tuple": lambda tree, frozen: tuple(_read_list(tree, frozen)),
    "set": _read_set,
    "frozenset": lambda tree, frozen: frozenset(_read_list(tree, frozen)),
    "bytes": lambda tree, frozen: b64decode(tree),
    "datetime": _read_moment(datetime.fromisoformat),
    "date": lambda tree, frozen: date.fromisoformat(tree),
    "time": _read_moment(time.fromisoformat),
    "timedelta": lambda tree, frozen: timedelta(*tree),
    "decimal": lambda tree, frozen: Decimal(tree),
    "uuid": lambda tree, frozen: UUID(tree),
    "complex": lambda tree, frozen: complex(*_read_list(tree, frozen)),
    **{tag: (lambda tree, frozen, cls=cls: cls(tree)) for tag, cls in _PATHS.items()},
}


def from_tree(tree: Any, frozen: bool) -> Any:
    """The value that a tagged tree stands for; *frozen* containers, or ordinary ones."""
    kind = type(tree)
    if kind is dict:
        if "$t" in tree:
            return _read_tag(tree, frozen)
        made = {key: from_tree(item, frozen) for key, item in tree.items()}
        return freeze(made, _leaf)[0] if frozen else made
    if kind is list:
        items = [from_tree(item, frozen) for item in tree]
        return freeze(items, _leaf)[0] if frozen else items
    return tree


def _read_tag(tree: dict[str, Any], frozen: bool) -> Any:
    tag = tree["$t"]
    try:
        body = tree["v"]
        read = _READERS.get(tag)
        if read is None:
            entry = _by_name.get(tag)
            if entry is None:
                warnings.warn(
                    f"no type is registered as {tag!r}; the value is kept as it was stored",
                    UnknownTypeWarning,
                    stacklevel=2,
                )
                return Opaque(tag, body)
            read = entry.from_tree
        return read(body, frozen)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise DecodeError(
            f"a value tagged {tag!r} cannot be read: {error}",
            hint="register the type as it was when the value was saved",
            tag=tag,
        ) from error


def _leaf(value: Any) -> tuple[Any, Nature] | None:
    """Freeze a value that is not a container: see `frozen.freeze`."""
    kind = type(value)
    if kind in _WRITERS:
        if kind is datetime or kind is time:
            _write_moment(value)
        return value, Nature.TAGGED
    entry = _by_class.get(kind)
    if entry is None:
        return (value, Nature.TAGGED) if kind is Opaque else None
    if not entry.live:
        return value, Nature.TAGGED
    return from_tree(to_tree(value), True), Nature.LIVE


def take_in(value: Any) -> tuple[Any, Nature]:
    """A deeply frozen copy of *value*, and its nature."""
    return freeze(value, _leaf)


def weigh(value: Any) -> Nature:
    """The nature of a value that stays mutable."""
    return nature_of(value, _leaf)


def encode(value: Any, nature: Nature | None = None) -> bytes:
    """The JSON text of *value*; `EncodeError` names the path to what cannot be stored."""
    if nature is None:
        nature = weigh(value)
    if nature is Nature.PLAIN:
        try:
            return encode_tree(value)
        except UnicodeEncodeError:
            pass
    return encode_tree(to_tree(value))


def parse(text: bytes) -> Any:
    """The tagged tree of a JSON text."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"stored text is not readable JSON: {error}") from error


def decode(text: bytes, *, frozen: bool = False) -> Any:
    """The value that *text* stands for."""
    tree = parse(text)
    if b'"$t"' not in text and b"\\u" not in text:
        return take_in(tree)[0] if frozen else tree
    return from_tree(tree, frozen)
