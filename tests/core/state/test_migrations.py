from __future__ import annotations

from collections import UserDict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.state.migration import Migrations, migrations
from surehold.core.values.codec import decode, encode
from surehold.core.values.frozen import FrozenDict, freeze
from surehold.errors import SchemaError, UsageError


def step(to: int) -> Any:
    """A migration that notes where it led."""
    return lambda state: {"path": [*state.get("path", []), to]}


def registry(*edges: tuple[int, int], name: str = "order") -> Migrations:
    made = Migrations()
    for start, end in edges:
        made.register(name, start, end, step(end))
    return made


def test_a_chain_is_followed_to_the_latest_version() -> None:
    made = registry((0, 1), (1, 2), (2, 5))
    assert made.latest("order") == 5
    assert made.upgrade("order", 0, {}) == ({"path": [1, 2, 5]}, 5)
    assert made.upgrade("order", 2, {}) == ({"path": [5]}, 5)


def test_the_shortest_way_is_taken_whatever_the_order_of_registration() -> None:
    for edges in [(0, 1), (1, 2), (2, 3), (0, 3)], [(0, 3), (2, 3), (1, 2), (0, 1)]:
        assert registry(*edges).upgrade("order", 0, {}) == ({"path": [3]}, 3)


def test_an_earlier_target_can_be_asked_for() -> None:
    assert registry((1, 2), (2, 3)).upgrade("order", 1, {}, to=2) == ({"path": [2]}, 2)


def test_a_current_state_is_left_as_it_is() -> None:
    assert registry((1, 2)).upgrade("order", 2, {"a": 1}) == ({"a": 1}, 2)
    assert Migrations().upgrade("order", 0, {"a": 1}) == ({"a": 1}, 0)
    assert Migrations().upgrade("order", 4, {"a": 1}, to=4) == ({"a": 1}, 4)


@pytest.mark.parametrize("to", [None, 2])
def test_a_newer_state_than_the_code_knows_is_refused_with_both_versions(to: int | None) -> None:
    with pytest.raises(SchemaError, match="version 7; this code knows up to 2") as caught:
        registry((1, 2)).upgrade("order", 7, {}, to=to)
    assert (caught.value.name, caught.value.version, caught.value.known) == ("order", 7, 2)


def test_code_without_migrations_refuses_what_newer_code_saved() -> None:
    with pytest.raises(SchemaError, match="version 1; this code knows up to 0"):
        Migrations().upgrade("order", 1, {})


def test_a_version_from_which_nothing_leads_on_is_refused_with_the_line_that_helps() -> None:
    with pytest.raises(SchemaError, match=r"register\('order', 1, 3, fn\)"):
        registry((2, 3)).upgrade("order", 1, {})
    with pytest.raises(SchemaError, match="from version 3 of 'order' to version 9"):
        registry((2, 3)).upgrade("order", 3, {}, to=9)


def test_names_do_not_mix() -> None:
    made = registry((0, 1))
    made.register("invoice", 0, 4, step(4))
    assert (made.latest("order"), made.latest("invoice"), made.latest("none")) == (1, 4, 0)
    assert made.upgrade("order", 0, {}) == ({"path": [1]}, 1)


def test_the_same_step_twice_is_refused_and_the_first_stays() -> None:
    made = registry((1, 2))
    with pytest.raises(UsageError, match="already has"):
        made.register("order", 1, 2, lambda state: {})
    assert made.upgrade("order", 1, {}) == ({"path": [2]}, 2)


def test_two_equally_short_ways_are_refused_and_leave_nothing() -> None:
    made = registry((1, 2), (2, 4), (1, 3))
    with pytest.raises(UsageError, match="1-2-4 and 1-3-4"):
        made.register("order", 3, 4, step(4))
    assert made.upgrade("order", 1, {}) == ({"path": [2, 4]}, 4)
    with pytest.raises(SchemaError):
        made.upgrade("order", 3, {})
    made.register("order", 1, 4, step(4))
    made.register("order", 3, 4, step(4))
    assert made.upgrade("order", 1, {}) == ({"path": [4]}, 4)
    assert made.upgrade("order", 3, {}) == ({"path": [4]}, 4)


@pytest.mark.parametrize(("start", "end"), [(2, 2), (2, 1), (-1, 2), (True, 2), ("1", 2), (1, 2.0)])
def test_a_step_that_does_not_lead_forward_is_refused(start: Any, end: Any) -> None:
    with pytest.raises(UsageError):
        Migrations().register("order", start, end, step(1))


def test_a_migration_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="function, not dict"):
        Migrations().register("order", 1, 2, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("result", [None, [], "state", 1])
def test_a_migration_that_returns_no_mapping_is_named(result: Any) -> None:
    def forgets(state: dict[str, Any]) -> Any:
        return result

    made = Migrations()
    made.register("order", 1, 2, forgets)
    with pytest.raises(SchemaError, match=rf"forgets.*returned {type(result).__name__}"):
        made.upgrade("order", 1, {})


def test_a_migration_that_raises_is_named_and_its_error_kept() -> None:
    def wants_more(state: dict[str, Any]) -> dict[str, Any]:
        return {"total": state["sum"]}

    made = Migrations()
    made.register("order", 1, 2, wants_more)
    with pytest.raises(SchemaError, match=r"wants_more.*KeyError\('sum'\)") as caught:
        made.upgrade("order", 1, {})
    assert isinstance(caught.value.__cause__, KeyError)


def test_any_mapping_is_taken_and_a_dict_comes_out() -> None:
    made = Migrations()
    made.register("order", 1, 2, UserDict)
    state, _ = made.upgrade("order", 1, UserDict({"a": 1}))
    assert type(state) is dict and state == {"a": 1}


def changes_in_place(state: dict[str, Any]) -> dict[str, Any]:
    state["items"].append(state.pop("last"))
    state["seen"].add(9)
    state["nested"]["deep"]["x"] = 1
    return state


def old_state() -> dict[str, Any]:
    return {"items": [1], "last": 2, "seen": {1}, "nested": {"deep": {}}}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_state_is_never_upgraded_in_place(frozen: bool) -> None:
    made = Migrations()
    made.register("order", 1, 2, changes_in_place)
    before = freeze(old_state(), lambda value: None)[0] if frozen else old_state()
    after, _ = made.upgrade("order", 1, before)
    assert before == old_state() and isinstance(before, FrozenDict) is frozen
    assert after == {"items": [1, 2], "seen": {1, 9}, "nested": {"deep": {"x": 1}}}


def test_what_the_codec_gives_can_be_upgraded() -> None:
    made = Migrations()
    made.register("order", 1, 2, changes_in_place)
    after, _ = made.upgrade("order", 1, decode(encode(old_state())))
    assert after["items"] == [1, 2]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14))
def test_whatever_is_registered_the_way_taken_is_a_shortest_one(
    edges: list[tuple[int, int]],
) -> None:
    made, kept = Migrations(), set[tuple[int, int]]()
    for start, end in edges:
        try:
            made.register("order", start, end, step(end))
            kept.add((start, end))
        except UsageError:
            continue
    for start in range(7):
        for end in range(start, 7):
            best = shortest(start, end, kept)
            if best is None:
                with pytest.raises(SchemaError):
                    made.upgrade("order", start, {}, to=end)
            else:
                state, _ = made.upgrade("order", start, {}, to=end)
                way = [start, *state.get("path", [])]
                assert way[-1] == end and len(way) - 1 == best
                assert set(pairwise(way)) <= kept


def shortest(start: int, end: int, edges: set[tuple[int, int]]) -> int | None:
    reached, length = {start}, 0
    while end not in reached:
        wider = reached | {b for a, b in edges if a in reached}
        if wider == reached:
            return None
        reached, length = wider, length + 1
    return length


def test_registries_share_nothing() -> None:
    migrations.register("only in the default one", 0, 1, step(1))
    assert migrations.latest("only in the default one") == 1
    assert Migrations().latest("only in the default one") == 0
