"""Lists known again by their leaves: the same answer as comparing them in full."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.values.codec import encode, parse
from surehold.core.values.frozen import Nature
from surehold.core.values.list_snapshot import SeenList
from surehold.core.values.patch import changes, whole
from surehold.core.values.rebuild import Rebuilt

LIVE = {"x": Nature.LIVE}

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([0.0, -0.0, 1.0]),
    st.text("ab\ud800$t", max_size=2),
)
values = st.one_of(
    leaves, st.lists(leaves, max_size=2), st.tuples(leaves), st.dictionaries(st.just("n"), leaves)
)
items = st.one_of(
    st.dictionaries(st.sampled_from(["role", "content", "$t", "\ud800"]), leaves, max_size=3),
    st.dictionaries(st.sampled_from(["role", "content", 1, True]), values, max_size=3),
    values,
)


class Text(str):
    """A string of a class of its own is not the string it equals."""

    __slots__ = ()


def message(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", "n": 1, **more}


@given(st.lists(items, max_size=5), st.data())
def test_a_list_changed_in_place_is_saved_as_what_changed(first: list[Any], data: Any) -> None:
    live = {"x": copy.deepcopy(first)}
    text, base = whole(live, LIVE)
    rebuilt = Rebuilt(text)
    for _ in range(3):
        for _ in range(data.draw(st.integers(0, 2))):
            _edit(live["x"], data)
        expected, _ = whole(live, LIVE)
        patch, base = changes(base, live, LIVE)
        rebuilt.apply(patch or b"[]")
        assert b'{"x":%b}' % rebuilt.texts()["x"] == expected
        assert base.size == len(expected)
        assert base.text_of("x") == rebuilt.texts()["x"]


def _edit(value: list[Any], data: Any) -> None:
    act = data.draw(st.sampled_from(["append", "drop", "swap", "inside"]))
    if act == "append" or not value:
        value.append(data.draw(items))
        return
    index = data.draw(st.integers(0, len(value) - 1))
    if act == "drop":
        del value[index]
    elif act == "swap":
        value[index] = data.draw(items)
    elif isinstance(value[index], dict):
        value[index][data.draw(st.sampled_from(["role", "more"]))] = data.draw(values)


@pytest.mark.parametrize(
    "change",
    [
        {"n": True},
        {"n": 1.0},
        {"content": "bye"},
        {"content": None},
        {"content": ["hi"]},
        {"more": 1},
    ],
)
def test_a_changed_leaf_is_seen(change: dict[str, Any]) -> None:
    seen = SeenList.of([message(), message()])
    assert seen is not None
    assert seen.added([message(), message()]) == []
    assert seen.added([message(), message(**change)]) is None


def test_a_value_that_only_equals_the_old_one_is_not_asked_whether_it_does() -> None:
    class Says:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("asked")

        __hash__ = None  # type: ignore[assignment]

    seen = SeenList.of([message()])
    assert seen is not None
    assert seen.added([message(content=Says())]) is None
    assert seen.added([message(content=Text("hi"))]) is None
    assert seen.added([{Text("role"): "user", "content": "hi", "n": 1}]) is None


def test_the_order_of_keys_and_their_places_count() -> None:
    seen = SeenList.of([{"a": 1, "b": 1}, {"c": 1}])
    assert seen is not None
    assert seen.added([{"b": 1, "a": 1}, {"c": 1}]) is None
    assert seen.added([{"a": 1}, {"b": 1, "c": 1}]) is None


def test_items_that_are_not_flat_are_compared_by_their_text() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    call = message(tool_calls=[{"name": "search", "at": now}])
    held = [message(), call, message()]
    seen = SeenList.of(held)
    assert seen is not None
    assert seen.text() == encode(held)
    assert seen.added([*held, message(n=2)]) == [message(n=2)]
    call["tool_calls"][0]["name"] = "find"
    assert seen.added(held) is None
    assert parse(seen.text())[1]["tool_calls"][0]["name"] == "search"


@pytest.mark.parametrize("value", [[], ["a", "b"], [1, 2, message()], (message(),), {"a": 1}, None])
def test_what_has_few_flat_dicts_is_left_to_its_text(value: Any) -> None:
    assert SeenList.of(value) is None
