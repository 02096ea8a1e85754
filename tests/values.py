"""Values of every kind that can be stored, and a comparison that tells all of them apart."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
from hypothesis import strategies as st

from surehold import register_type
from surehold.core.values.frozen import FrozenDict, FrozenList, FrozenSet

PLAIN: dict[type, type] = {FrozenList: list, FrozenDict: dict, FrozenSet: set}


def plain_type(value: object) -> type:
    return PLAIN.get(type(value), type(value))


def exactly_equal(a: Any, b: Any) -> bool:
    """Equal in value, type and order, all the way down; frozen containers count as ordinary ones.

    >>> exactly_equal(1, True), exactly_equal(0.0, -0.0), exactly_equal((1,), [1])
    (False, False, False)
    """
    kind = plain_type(a)
    if kind is not plain_type(b):
        return False
    if kind is float:
        return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)
    if kind is complex:
        return exactly_equal(a.real, b.real) and exactly_equal(a.imag, b.imag)
    if kind is Decimal:
        return a.as_tuple() == b.as_tuple()
    if kind is list or kind is tuple:
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if kind is dict:
        return exactly_equal([*a.items()], [*b.items()])
    if kind is set or kind is frozenset:
        return len(a) == len(b) and all(any(exactly_equal(x, y) for y in b) for x in a)
    if kind is datetime or kind is time:
        return _parts_of_moment(a) == _parts_of_moment(b)
    if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct | pydantic.BaseModel):
        return exactly_equal(_parts_of_object(a), _parts_of_object(b))
    return bool(a == b)


def _parts_of_moment(value: datetime | time) -> tuple[object, ...]:
    zone = value.tzinfo
    named = zone.key if isinstance(zone, ZoneInfo) else zone.tzname(None) if zone else None
    return value.replace(tzinfo=None, fold=0).isoformat(), value.fold, type(zone), zone, named


def _parts_of_object(value: Any) -> dict[str, object]:
    if isinstance(value, pydantic.BaseModel):
        return {**value.__getstate__(), "fields": sorted(value.model_fields_set)}
    names = getattr(value, "__struct_fields__", None) or [
        each.name for each in dataclasses.fields(value)
    ]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def has_only_frozen_containers(value: Any) -> bool:
    """True if no list, dict or set in *value* can be changed, in users' objects as well."""
    if type(value) in (list, dict, set):
        return False
    if isinstance(value, dict):
        return all(map(has_only_frozen_containers, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(has_only_frozen_containers, value))
    if isinstance(value, pydantic.BaseModel):
        return all(map(has_only_frozen_containers, value.__dict__.values()))
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return all(map(has_only_frozen_containers, _parts_of_object(value).values()))
    return True


@register_type
class Color(Enum):
    RED = "r"
    BLUE = "b"
    AZURE = "b"


@register_type
class Level(IntEnum):
    LOW = 1
    HIGH = 2


@register_type
class Word(StrEnum):
    YES = "yes"


@register_type
class Right(Flag):
    READ = auto()
    WRITE = auto()


@register_type
@dataclass
class Point:
    x: Any
    y: Any = 0


@register_type
@dataclass(frozen=True, slots=True)
class Pair:
    left: Any
    right: Any = None


@register_type
@dataclass(slots=True)
class Meter:
    limit: Any
    count: int = field(init=False, default=0)
    total: Any = field(init=False)
    """Not set until it is first needed."""

    def __post_init__(self) -> None:
        self.count = 1


@register_type
class Node(msgspec.Struct):
    value: Any
    below: list[Any] = []


@register_type
class Stamped(msgspec.Struct, frozen=True, kw_only=True):
    value: Any
    made: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "made", self.made + 1)


@register_type
class Person(pydantic.BaseModel):
    name: Any
    age: Any = 1
    nick: Any = pydantic.Field(default=None, alias="age_")
    _seen: Any = pydantic.PrivateAttr(default=0)

    def model_post_init(self, context: object) -> None:
        self._seen += 1


@register_type
class Open(pydantic.BaseModel, extra="allow", frozen=True):
    known: Any = None


class Money:
    """A class that nothing is known of but what it is registered with."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)

    def __repr__(self) -> str:
        return f"Money({self.cents})"


register_type(
    Money, "money", encode=lambda m: {"cents": [m.cents]}, decode=lambda d: Money(d["cents"].pop())
)


text = st.text(st.characters(), max_size=8)
"""With halves of surrogate pairs."""

_offsets = st.timedeltas(
    min_value=-timedelta(hours=23, minutes=59), max_value=timedelta(hours=23, minutes=59)
)
zones = st.one_of(
    st.just(UTC),
    st.builds(timezone, _offsets),
    st.builds(timezone, _offsets, text),
    st.sampled_from(["Europe/Berlin", "America/St_Johns", "Asia/Kolkata", "UTC"]).map(ZoneInfo),
)


def _folded(moments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda moment, fold: moment.replace(fold=fold), moments, st.integers(0, 1))


_paths = st.text(st.characters(exclude_characters="\0"), max_size=8)

hashable_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    text,
    st.binary(max_size=8),
    st.complex_numbers(),
    st.decimals().filter(lambda value: not value.is_snan()),
    st.uuids(),
    _folded(st.datetimes(timezones=st.none() | zones)),
    _folded(st.times(timezones=st.none() | zones)),
    st.dates(),
    st.timedeltas(),
    st.sampled_from([*Color, *Level, *Word, *Right, Right(0), Right.READ | Right.WRITE, Money(5)]),
    _paths.map(PosixPath),
    _paths.map(PurePosixPath),
    _paths.map(PureWindowsPath),
)
scalars = hashable_scalars | st.decimals() | st.integers(0, 9) | st.text("ab", max_size=2)

hashables = st.recursive(
    hashable_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=5,
)

_names = st.sampled_from(["$t", "v", "dict", "tuple", "str", "__class__", "py/object", "lc", "id"])


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        st.dictionaries(text, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        look_alikes(inner),
    )


def look_alikes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Dicts of the user's that look like tags, ours or those of other libraries."""
    tags = _names | text | inner
    return st.one_of(
        st.fixed_dictionaries({"$t": tags}, optional={"v": inner, "x": inner}),
        st.fixed_dictionaries({"v": inner, "$t": _names}),
        st.fixed_dictionaries({"$t": st.just("dict"), "v": st.lists(st.lists(inner, max_size=2))}),
        st.dictionaries(_names, inner, max_size=3),
        st.fixed_dictionaries(
            {"lc": st.just(1), "type": st.just("constructor"), "id": st.lists(text, max_size=2)}
        ),
        st.fixed_dictionaries({"py/object": st.just("os.system"), "__class__": text}),
    )


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Meter, inner),
        st.builds(Node, inner, st.lists(inner, max_size=2)),
        st.builds(Stamped, value=inner),
        st.builds(lambda name, nick: Person(name=name, age_=nick), inner, inner),
        st.builds(lambda extra: Open(**extra), st.dictionaries(st.sampled_from("abc"), inner)),
    )


unchanging = st.recursive(scalars, _containers, max_leaves=12)
"""Everything but objects of user classes."""

values = st.recursive(scalars, lambda inner: _containers(inner) | _objects(inner), max_leaves=12)
"""Everything that can be stored."""

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)
"""What JSON says exactly. A dict may still look like a tag."""
