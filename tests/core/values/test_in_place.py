"""A value is made equal to another one in place."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import numpy
import pytest
from pydantic import BaseModel, ConfigDict

from surehold.core.values import put_back


@dataclass
class Plain:
    a: Any
    b: Any = 2


@dataclass(slots=True)
class Slotted:
    a: Any


@dataclass(frozen=True)
class Frozen:
    a: Any


class Struct(msgspec.Struct):
    a: Any


class FrozenStruct(msgspec.Struct, frozen=True):
    a: Any


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: Any = 1


class FrozenModel(BaseModel, frozen=True):
    a: Any


class Pair(NamedTuple):
    a: Any
    b: Any


class Colour(Enum):
    RED = 1
    BLUE = 2


KEPT = [
    ({"a": 1, "b": 2}, {"b": 3}),
    ([1, 2, 3], [4]),
    ([], [1, {2}]),
    ({1}, {2}),
    (bytearray(b"ab"), bytearray(b"c")),
    (deque([1], 3), deque([2, 3], 3)),
    (Counter("ab"), Counter("c")),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (defaultdict(list, {1: [1]}), defaultdict(list, {2: [2]})),
    (Plain(1), Plain([1], 3)),
    (Slotted(1), Slotted(2)),
    (Struct(1), Struct(2)),
    (Model(a=1, more=2), Model(a=2)),
    (Model(), Model(more=2)),
]


@pytest.mark.parametrize(("now", "saved"), KEPT)
def test_what_can_change_stays_the_same_object(now: Any, saved: Any) -> None:
    assert put_back(now, saved) is now
    assert now == saved and type(now) is type(saved)


OTHERS = [
    (1, True),
    (1, 2),
    ("a", ["a"]),
    (None, {}),
    (deque([1], 3), deque([1], 4)),
    (Colour.RED, Colour.BLUE),
    (frozenset({1}), frozenset({2})),
    (date(2026, 11, 18), date(2026, 11, 19)),
    (Frozen(1), Frozen(2)),
    (FrozenStruct(1), FrozenStruct(2)),
    (FrozenModel(a=1), FrozenModel(a=2)),
]


@pytest.mark.parametrize(("now", "saved"), OTHERS)
def test_what_cannot_change_is_replaced(now: Any, saved: Any) -> None:
    before = repr(now)
    assert put_back(now, saved) is saved
    assert repr(now) == before


def test_parts_at_any_depth_stay_the_same_objects() -> None:
    inner, line, attribute = {1}, [1], Plain([1])
    now = {"a": (inner, Pair(1, line)), "b": Struct(attribute)}
    made = put_back(now, {"a": ({2}, Pair(3, [4])), "b": Struct(Plain([5], 6))})
    assert made is now == {"a": ({2}, Pair(3, [4])), "b": Struct(Plain([5], 6))}
    assert now["a"][0] is inner and now["a"][1].b is line and now["b"].a is attribute
    assert (inner, line, attribute) == ({2}, [4], Plain([5], 6))


def test_attributes_that_are_not_fields_are_put_back_too() -> None:
    now, saved = Plain(1), Plain(1)
    now.late = 1  # type: ignore[attr-defined]
    saved.other = [2]  # type: ignore[attr-defined]
    put_back(now, saved)
    assert vars(now) == {"a": 1, "b": 2, "other": [2]}


def test_arrays_of_one_form_stay_the_same_objects() -> None:
    now, saved = numpy.zeros(3), numpy.ones(3)
    assert put_back(now, saved) is now and now.tolist() == [1.0, 1.0, 1.0]
    assert put_back(now, numpy.ones(4)) is not now
    assert put_back(numpy.float64(1), numpy.float64(2)) == 2
