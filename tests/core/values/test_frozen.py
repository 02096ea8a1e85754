"""Values in a state cannot be changed in place, and copies of them can."""

from __future__ import annotations

import copy
import dataclasses
import json
import operator
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.values import (
    Color,
    Pair,
    Point,
    exactly_equal,
    has_only_frozen_containers,
    unchanging,
    values,
)

from surehold.core.values.codec import encode, take_in
from surehold.core.values.frozen import FrozenDict, FrozenList, FrozenSet, Nature
from surehold.errors import UsageError

LIST_MUTATORS: dict[str, Callable[[Any], object]] = {
    "append": lambda v: v.append(1),
    "extend": lambda v: v.extend([1]),
    "insert": lambda v: v.insert(0, 1),
    "pop": lambda v: v.pop(),
    "remove": lambda v: v.remove(1),
    "clear": lambda v: v.clear(),
    "sort": lambda v: v.sort(),
    "reverse": lambda v: v.reverse(),
    "set item": lambda v: operator.setitem(v, 0, 1),
    "set slice": lambda v: operator.setitem(v, slice(0, 1), []),
    "delete item": lambda v: operator.delitem(v, 0),
    "delete slice": lambda v: operator.delitem(v, slice(None)),
    "+=": lambda v: operator.iadd(v, [1]),
    "*=": lambda v: operator.imul(v, 2),
    "init": lambda v: v.__init__([1]),
}
DICT_MUTATORS: dict[str, Callable[[Any], object]] = {
    "set item": lambda v: operator.setitem(v, "a", 1),
    "delete item": lambda v: operator.delitem(v, "a"),
    "pop": lambda v: v.pop("a"),
    "pop with default": lambda v: v.pop("z", None),
    "popitem": lambda v: v.popitem(),
    "clear": lambda v: v.clear(),
    "update": lambda v: v.update(a=1),
    "setdefault": lambda v: v.setdefault("z", []),
    "|=": lambda v: operator.ior(v, {"a": 1}),
    "init": lambda v: v.__init__(a=1),
}
SET_MUTATORS: dict[str, Callable[[Any], object]] = {
    "add": lambda v: v.add(1),
    "discard": lambda v: v.discard(1),
    "remove": lambda v: v.remove(1),
    "pop": lambda v: v.pop(),
    "clear": lambda v: v.clear(),
    "update": lambda v: v.update([1]),
    "difference_update": lambda v: v.difference_update([1]),
    "intersection_update": lambda v: v.intersection_update([1]),
    "symmetric_difference_update": lambda v: v.symmetric_difference_update([1]),
    "|=": lambda v: operator.ior(v, {1}),
    "&=": lambda v: operator.iand(v, {1}),
    "-=": lambda v: operator.isub(v, {1}),
    "^=": lambda v: operator.ixor(v, {1}),
    "init": lambda v: v.__init__([1]),
}
CASES = [
    pytest.param(value, mutate, id=f"{type(value).__name__} {name}")
    for value, mutators in (
        ([3, 1, 2], LIST_MUTATORS),
        ({"a": 2}, DICT_MUTATORS),
        ({1, 2}, SET_MUTATORS),
    )
    for name, mutate in mutators.items()
]


@pytest.mark.parametrize(("value", "mutate"), CASES)
def test_every_mutator_raises_with_a_hint_and_changes_nothing(
    value: Any, mutate: Callable[[Any], object]
) -> None:
    taken, _ = take_in(value)
    with pytest.raises(UsageError, match="frozen and cannot be changed in place") as caught:
        mutate(taken)
    assert re.search(r"use state\.(set|append)\(", caught.value.hint)
    assert exactly_equal(taken, value)


@pytest.mark.parametrize(
    ("frozen", "plain", "tested"),
    [
        (FrozenList, list, LIST_MUTATORS),
        (FrozenDict, dict, DICT_MUTATORS),
        (FrozenSet, set, SET_MUTATORS),
    ],
)
def test_no_method_of_the_plain_class_that_changes_it_is_left(
    frozen: type, plain: type, tested: dict[str, Any]
) -> None:
    """Each method is called on a plain value; one that changes it must be overridden."""
    arguments: list[tuple[Any, ...]] = [(), (1,), ([1],), ({1},), ({"b": 1},), (0, 5), ("a", 5)]
    for name in dir(plain):
        if name in ("__class__", "__init_subclass__", "__new__", "__setattr__", "__delattr__"):
            continue
        for given_to in arguments:
            value = plain({"a": 2}) if plain is dict else plain([1, 2, 3])
            before = copy.copy(value)
            try:
                getattr(value, name)(*given_to)
            except Exception:
                continue
            if value != before:
                assert getattr(frozen, name) is not getattr(plain, name), name


@given(unchanging)
def test_copies_and_pickles_of_frozen_values_are_ordinary(value: Any) -> None:
    taken, _ = take_in([value])
    for copied in (copy.deepcopy(taken), pickle.loads(pickle.dumps(taken))):
        assert exactly_equal(copied, [value])
        assert type(copied) is list
        assert no_frozen_in(copied)
    assert type(copy.copy(taken)) is list


def no_frozen_in(value: Any) -> bool:
    return "surehold.core.values.frozen" not in repr(pickle.dumps(value)) and not has_frozen(value)


def has_frozen(value: Any) -> bool:
    if isinstance(value, FrozenList | FrozenDict | FrozenSet):
        return True
    if isinstance(value, dict):
        return any(map(has_frozen, [*value, *value.values()]))
    return isinstance(value, list | tuple | set | frozenset) and any(map(has_frozen, value))


def test_a_deep_copy_shares_no_object_with_the_frozen_value() -> None:
    taken, _ = take_in({"a": [Point([1])], "b": {Pair(1)}})
    copied = copy.deepcopy(taken)
    copied["a"][0].x.append(2)
    assert taken == {"a": [Point([1])], "b": {Pair(1)}}


def test_what_python_makes_of_frozen_values_is_ordinary() -> None:
    items, table, group = take_in([3, 1])[0], take_in({"a": 1})[0], take_in({1, 2})[0]
    made = [
        *(
            operator.add(items, [1]),
            items * 2,
            items[:],
            items[::-1],
            items.copy(),
            sorted(items),
            [*items],
        ),
        *(table | {"b": 1}, {**table}, table.copy(), dict(table), FrozenDict.fromkeys("ab")),
        *(group | {3}, group & {1}, group - {1}, group ^ {1}, group.copy(), group.union([3])),
        *(group.difference([1]), group.intersection([1]), group.symmetric_difference([1])),
        *(FrozenList([1]), FrozenDict(a=1), FrozenSet([1])),
        *map(copy.copy, (items, table, group)),
    ]
    assert {type(value) for value in made} == {list, dict, set}
    assert json.dumps([items, table]) == '[[3, 1], {"a": 1}]'


def test_an_object_of_a_state_can_be_turned_into_a_dict() -> None:
    """`dataclasses.asdict` makes containers by calling the class of those it meets."""
    taken, _ = take_in(Point([1, {"a": [2]}], {"b": 3}))
    made = dataclasses.asdict(taken)
    assert exactly_equal(made, {"x": [1, {"a": [2]}], "y": {"b": 3}})
    made["x"].append(4)
    assert exactly_equal(take_in(made)[0], made)


@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_a_grown_list_is_frozen_and_knows_where_it_came_from(
    old: list[Any], new: list[Any]
) -> None:
    before, added = take_in(old)[0], take_in(new)[0]
    grown = before.grown(added)
    assert exactly_equal(grown, [*old, *new])
    assert has_only_frozen_containers(grown)
    assert grown.grew_from(before)
    assert encode(grown, grown.nature) == encode([*old, *new])
    assert grown.height == take_in([*old, *new])[0].height


def test_only_one_list_goes_on_with_a_lineage() -> None:
    start, added = take_in([1])[0], take_in([2])[0]
    first = start.grown(added)
    second = start.grown(added)
    third = first.grown(added)
    assert first.grew_from(start) and third.grew_from(first) and third.grew_from(start)
    assert not second.grew_from(start) and not second.grew_from(first)
    assert not third.grew_from(second)
    assert not start.grew_from(first)


@pytest.mark.parametrize(
    ("value", "nature"),
    [
        ({"a": [1, 1.5, "x", None, True]}, Nature.PLAIN),
        ({"a": [1 << 64]}, Nature.TAGGED),
        ([float("nan")], Nature.TAGGED),
        ({"$t": 1}, Nature.TAGGED),
        ([{"a": {1: 2}}], Nature.TAGGED),
        ([()], Nature.TAGGED),
        ([Color.RED], Nature.TAGGED),
        ([Point(1)], Nature.LIVE),
        ({"a": (frozenset([Pair(1)]),)}, Nature.LIVE),
        ({Pair(1): 1}, Nature.LIVE),
        ({1: [Point(1)]}, Nature.LIVE),
    ],
)
def test_the_nature_of_a_container_is_that_of_what_it_holds(value: Any, nature: Nature) -> None:
    taken, found = take_in(value)
    assert found is taken.nature is nature
