"""Values as JSON text and back, every one as the type it was.

What JSON cannot say carries a tag: ``{"$t": "datetime", "v": "2026-11-15T20:21:19+00:00"}``. A
user's own dict that has a ``$t`` key is written as tagged pairs, so it cannot be mistaken for a
tag. Classes of the user's own are registered in code or, if they are made of fields, learned when
a value is saved. The decoder looks names up in that registry and in the modules that are imported
already, so no text can make it import or call anything.

>>> text = encode({"when": (1, 2), "$t": "mine"})
>>> decode(text)
{'when': (1, 2), '$t': 'mine'}
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from threading import Lock
from typing import Any, Literal, TypeVar

import msgspec

from surehold.core.values.classes import find_class, is_learnable, name_of
from surehold.core.values.frozen import (
    DEPTH_LIMIT,
    FrozenDict,
    FrozenList,
    FrozenSet,
    Nature,
    at_path,
    freeze,
    nature_of,
    thaw,
    too_deep,
    unknown_type,
)
from surehold.core.values.objects import ObjectParts, fields_in, parts_of
from surehold.core.values.scalars import READERS, WRITERS, check, write_str
from surehold.errors import DecodeError, EncodeError, SureholdError, UsageError

T = TypeVar("T")

_PLAIN, _TAGGED, _LIVE = Nature

encode_tree: Callable[[Any], bytes] = msgspec.json.Encoder().encode
"""JSON text of a tree that is already tagged."""
_decode_tree: Callable[[bytes], Any] = msgspec.json.Decoder().decode


class UnknownTypeWarning(UserWarning):
    """A stored value has an unregistered type tag; it is kept as `Opaque`."""


class Opaque(msgspec.Struct, frozen=True):
    """A stored value of a type that is not registered here, kept as it was found."""

    tag: str
    text: bytes
    """The stored value of the tag, as JSON."""


class _Type(msgspec.Struct, frozen=True):
    name: str
    cls: type
    parts: ObjectParts
    ordinary: bool
    """True if `parts.make` is the user's: it gets plain containers in frozen values too."""
    learned: bool = False
    """True if the class was not registered, but saved or found by its name."""


Unknown = Literal["keep", "refuse", "plain"]
_BECOMES = {"keep": "kept as it was stored", "plain": "given as its plain fields"}
_by_class: dict[type, _Type] = {}
_by_name: dict[str, _Type] = {}
_registering = Lock()
_unknown: ContextVar[Unknown] = ContextVar("surehold_unknown", default="keep")


def register_type(
    cls: type[T],
    name: str | None = None,
    *,
    encode: Callable[[T], Any] | None = None,
    decode: Callable[[Any], T] | None = None,
) -> type[T]:
    """Let values of *cls* be stored, under *name*, by default its qualified name.

    Enums, dataclasses, `msgspec.Struct` and pydantic models need nothing more: they are stored
    by their fields and come back without a call to their constructor. Any other class needs
    *encode* (to something storable) and *decode* (back). It can be used as a decorator.

    >>> from fractions import Fraction
    >>> _ = register_type(Fraction, encode=str, decode=Fraction)
    """
    if not isinstance(cls, type):
        raise UsageError(f"{cls!r} is not a class", hint="register the class of the values")
    name = cls.__qualname__ if name is None else name
    if (encode is None) != (decode is None):
        raise UsageError("encode and decode go together", hint="give both, or neither")
    if not isinstance(name, str):
        raise UsageError(f"a type's name is a string, not {type(name).__name__}")
    if not name or write_str(name) is not name:
        raise UsageError(f"{name!r} cannot name a type", hint="pass another name=")
    if name in READERS or name in _READ_CONTAINER:
        raise UsageError(f"{name!r} is the name of a built-in type", hint="pass another name=")
    if cls in WRITERS or cls in _CONTAINERS or cls is Opaque:
        raise UsageError(f"{cls.__qualname__} is stored as it is and cannot be registered")
    if encode is not None and decode is not None:
        entry = _Type(name, cls, ObjectParts(encode, decode), ordinary=True)
    else:
        entry = _Type(name, cls, parts_of(cls), ordinary=False)
    with _registering:
        holder, former = _by_name.get(name), _by_class.get(cls)
        if holder is not None and _identity(holder.cls) != _identity(cls):
            raise UsageError(
                f"the type name {name!r} is taken by {holder.cls.__qualname__}",
                hint="pass another name=",
            )
        if former is not None and former.name != name and not former.learned:
            raise UsageError(f"{cls.__qualname__} is already registered as {former.name!r}")
        _by_name[name] = entry
        _by_class[cls] = entry
    return cls


def _entry_of(cls: type) -> _Type | None:
    """The entry of a class, which is learned if it is made of fields."""
    entry = _by_class.get(cls)
    if entry is None and is_learnable(cls):
        entry = _learn(cls)
    return entry


def _learn(cls: type) -> _Type | None:
    try:
        entry = _Type(name_of(cls), cls, parts_of(cls), ordinary=False, learned=True)
    except UsageError:  # it is more than its fields
        return None
    with _registering:
        _by_name.setdefault(entry.name, entry)
        return _by_class.setdefault(cls, entry)


def _found(name: str) -> _Type | None:
    """The entry of a class that this process has under *name*, and has not saved yet."""
    cls = find_class(name)
    if cls is None or (name_of(cls) != name and f"{cls.__module__}.{cls.__qualname__}" != name):
        return None
    return _entry_of(cls)


def is_registered(cls: type) -> bool:
    """True if `register_type` was called with *cls*."""
    entry = _by_class.get(cls)
    return entry is not None and not entry.learned


def _identity(cls: type) -> tuple[str, str]:
    """A class that is defined again, in a notebook or by a reload, is the same one."""
    return cls.__module__, cls.__qualname__


def _to_tree(value: Any, depth: int = 0) -> Any:
    """*value* as a tree that JSON says exactly."""
    kind = type(value)
    write = WRITERS.get(kind)
    if write is not None:
        return write(value)
    if depth > DEPTH_LIMIT:
        raise too_deep()
    if kind is dict or kind is FrozenDict:
        return _dict_tree(value, depth + 1)
    if kind in _CONTAINERS:
        tag = _CONTAINERS[kind]
        items = _items_tree(value, depth + 1)
        if tag is None:
            return items
        # Sets have no order of their own: the same set must give the same text.
        return {"$t": tag, "v": items if kind is tuple else sorted(items, key=encode_tree)}
    if kind is Opaque:
        return {"$t": value.tag, "v": parse(value.text)}
    entry = _entry_of(kind)
    if entry is None:
        raise unknown_type(value)
    parts = _taken_apart(value, entry)
    if entry.ordinary or type(parts) is not dict:
        return {"$t": entry.name, "v": _to_tree(parts, depth + 1)}
    return {"$t": entry.name, "v": _members_tree(parts, depth + 1)}


_CONTAINERS: dict[type, str | None] = {
    dict: None,
    FrozenDict: None,
    list: None,
    FrozenList: None,
    tuple: "tuple",
    set: "set",
    FrozenSet: "set",
    frozenset: "frozenset",
}


def _dict_tree(value: dict[Any, Any], depth: int) -> Any:
    if "$t" not in value and all(type(key) is str and write_str(key) is key for key in value):
        return _members_tree(value, depth)
    key: Any = None
    pairs = []
    try:
        for key, item in value.items():
            pairs.append([_to_tree(key, depth), _to_tree(item, depth)])
    except EncodeError as error:
        at_path(error, key)
        raise
    return {"$t": "dict", "v": pairs}


def _members_tree(value: dict[str, Any], depth: int) -> dict[str, Any]:
    """The tree of a dict whose keys JSON can say."""
    made = {}
    key = ""
    try:
        for key, item in value.items():
            made[key] = _to_tree(item, depth)
    except EncodeError as error:
        at_path(error, key)
        raise
    return made


def _items_tree(value: Iterable[Any], depth: int) -> list[Any]:
    made: list[Any] = []
    try:
        for item in value:
            made.append(_to_tree(item, depth))
    except EncodeError as error:
        at_path(error, len(made))
        raise
    return made


def _taken_apart(value: Any, entry: _Type) -> Any:
    try:
        return entry.parts.take(value)
    except SureholdError:
        raise
    except Exception as error:
        raise EncodeError(f"{entry.name} cannot be encoded: {error!r}") from error


def _from_tree(tree: Any, frozen: bool) -> Any:
    """The value that a tagged tree stands for; *frozen* containers, or ordinary ones."""
    kind = type(tree)
    if kind is dict:
        if "$t" in tree:
            return _read_tag(tree, frozen)
        made: Any = {key: _from_tree(item, frozen) for key, item in tree.items()}
    elif kind is list:
        made = [_from_tree(item, frozen) for item in tree]
    else:
        return tree
    return freeze(made, _keep)[0] if frozen else made


def _read_tag(tree: dict[str, Any], frozen: bool) -> Any:
    tag = tree["$t"]
    try:
        if len(tree) != 2:
            raise ValueError("it is not a tag and a value")
        body = tree["v"]
        read = READERS.get(tag)
        if read is not None:
            return read(body)
        read_container = _READ_CONTAINER.get(tag)
        if read_container is not None:
            return read_container(body, frozen)
        entry = _by_name.get(tag) or _found(tag)
        if entry is not None:
            return entry.parts.make(_read_parts(body, frozen and not entry.ordinary))
    except (SureholdError, Warning):
        raise
    except Exception as error:
        raise DecodeError(
            f"a value tagged {tag!r} cannot be read: {error!r}",
            hint="register the type as it was when the value was saved,"
            " or with encode= and a decode= that reads both",
            tag=tag,
        ) from error
    unknown = _unknown.get()
    if unknown == "refuse":
        raise DecodeError(
            f"no type is registered as {tag!r}",
            hint="import the module of the class before the run is read, or"
            f" surehold.register_type(cls, name={tag!r})",
            tag=tag,
        )
    warnings.warn(
        f"no type is known as {tag!r}; the value is {_BECOMES[unknown]} (import the module of the"
        " class before the run is read, or register it)",
        UnknownTypeWarning,
        stacklevel=2,
    )
    if unknown == "plain":
        return fields_in(_from_tree(body, frozen))
    return Opaque(tag, encode_tree(body))


def _read_parts(tree: Any, frozen: bool) -> Any:
    """Return the parts of an object, in a new dict that need not be frozen."""
    if type(tree) is dict and "$t" not in tree:
        return {name: _from_tree(part, frozen) for name, part in tree.items()}
    return _from_tree(tree, frozen)


def _read_items(tree: Any, frozen: bool) -> list[Any]:
    if type(tree) is not list:
        raise TypeError("it has no list of items")
    return [_from_tree(item, frozen) for item in tree]


def _read_pairs(tree: Any, frozen: bool) -> Any:
    made = {}
    for pair in tree:
        if type(pair) is not list:
            raise TypeError("it has no list of pairs")
        key, item = pair
        made[_from_tree(key, frozen)] = _from_tree(item, frozen)
    return freeze(made, _keep)[0] if frozen else made


def _read_set(tree: Any, frozen: bool) -> Any:
    made = set(_read_items(tree, frozen))
    return freeze(made, _keep)[0] if frozen else made


_READ_CONTAINER: dict[str, Callable[[Any, bool], Any]] = {
    "dict": _read_pairs,
    "tuple": lambda tree, frozen: tuple(_read_items(tree, frozen)),
    "set": _read_set,
    "frozenset": lambda tree, frozen: frozenset(_read_items(tree, frozen)),
}


def _keep(value: Any, depth: int = 0) -> tuple[Any, Nature] | None:
    """The nature of a value that is not a container, for `freeze`: it is not copied."""
    kind = type(value)
    if kind in WRITERS or kind is Opaque:
        return value, _TAGGED
    entry = _entry_of(kind)
    if entry is None:
        return None
    return value, _LIVE if entry.parts.live else _TAGGED


def _copy(value: Any, depth: int) -> tuple[Any, Nature] | None:
    """The same, with a copy of what may change."""
    kept = _keep(value)
    if kept is not None and kept[1] is _LIVE:
        return _from_tree(_to_tree(value, depth), True), _LIVE
    check(value)
    return kept


def take_in(value: Any) -> tuple[Any, Nature]:
    """A deeply frozen copy of *value*, and its nature."""
    try:
        return freeze(value, _copy)
    except RecursionError:
        raise too_deep() from None


def give_out(value: Any) -> Any:
    """A copy of a frozen *value* that is ordinary all through and may be changed."""
    return thaw(value, _ordinary)


def _ordinary(value: Any) -> Any:
    entry = _by_class.get(type(value))
    if entry is None or not entry.parts.live:
        return value
    return _from_tree(_to_tree(value), False)


def can_change(value: Any) -> bool:
    """Return False if *value*, which can be stored, is the same for ever."""
    kind = type(value)
    if kind in WRITERS:
        return False
    if kind is FrozenDict or kind is FrozenList or kind is FrozenSet:
        return bool(value.nature is _LIVE)
    entry = _by_class.get(kind)
    return entry is None or entry.parts.live


def copied(value: Any) -> Any:
    """The value that a load returns for a saved *value*: a copy of a mutable one."""
    return decode(encode(value)) if can_change(value) else value


def weigh(value: Any) -> Nature:
    """The nature of a value that stays mutable."""
    try:
        return nature_of(value, _keep)
    except RecursionError:
        raise too_deep() from None


def encode(value: Any, nature: Nature | None = None) -> bytes:
    """The JSON text of *value*; `EncodeError` names the path to what cannot be stored."""
    if nature is None:
        frozen = type(value) is FrozenDict or type(value) is FrozenList
        nature = value.nature if frozen else weigh(value)
    try:
        if nature is _PLAIN:
            try:
                return encode_tree(value)
            except UnicodeEncodeError:  # half a surrogate pair, which the weighing does not see
                pass
        return encode_tree(_to_tree(value))
    except RecursionError:
        raise too_deep() from None


def parse(text: bytes) -> Any:
    """The tagged tree of a JSON text."""
    try:
        return _decode_tree(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"stored text is not readable JSON: {error}") from error


def decode(text: bytes, *, frozen: bool = False, strict: bool = False, plain: bool = False) -> Any:
    """The value that *text* stands for.

    A value of a type that is not registered is kept as `Opaque`, with a warning; with *plain* it is
    a dict of its fields, with a warning; with *strict* it is a `DecodeError`.
    """
    if strict or plain:
        before = _unknown.set("refuse" if strict else "plain")
        try:
            return decode(text, frozen=frozen)
        finally:
            _unknown.reset(before)
    tree = parse(text)
    # A tag's key has no other spelling in what `encode` writes; any escape could be one.
    tagged = b'"$t"' in text or b"\\u" in text
    try:
        if tagged:
            return _from_tree(tree, frozen)
        return take_in(tree)[0] if frozen else tree
    except (EncodeError, RecursionError) as error:
        what = error.message if isinstance(error, EncodeError) else error
        raise DecodeError(f"stored text is nested too deep: {what}") from error


_FACTORIES: dict[str, Any] = {
    one.__name__: one
    for one in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
}


def _defaultdict_parts(value: Any) -> list[Any]:
    factory = value.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise EncodeError(
            f"a defaultdict that makes its values with {factory!r} cannot be stored",
            hint=f"store dict(value), or use a factory of {', '.join(_FACTORIES)}",
        )
    return [factory and factory.__name__, [*value.items()]]


def _read_defaultdict(parts: Any) -> Any:
    factory, pairs = parts
    return defaultdict(None if factory is None else _FACTORIES[factory], pairs)


register_type(bytearray, encode=bytes, decode=bytearray)
register_type(
    deque,
    encode=lambda value: [value.maxlen, [*value]],
    decode=lambda parts: deque(parts[1], parts[0]),
)
register_type(Counter, encode=dict, decode=Counter)
register_type(defaultdict, encode=_defaultdict_parts, decode=_read_defaultdict)
register_type(OrderedDict, encode=lambda value: [*value.items()], decode=OrderedDict)
register_type(
    range,
    encode=lambda value: [value.start, value.stop, value.step],
    decode=lambda parts: range(*parts),
)
