"""A state is a frozen value that knows its run, and keeps its secrets to itself."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.values import Point, exactly_equal, has_only_frozen_containers, plain_values, values

from surehold.core.state.position import Lineage, Place, Secrets, read_metadata, read_tags
from surehold.core.state.state import State
from surehold.core.values.codec import decode, encode
from surehold.core.values.frozen import DEPTH_LIMIT, FrozenDict, FrozenList, Nature
from surehold.core.values.patch import LAZY_BYTES, Lazy
from surehold.errors import EncodeError, UsageError

keys = st.text(min_size=1, max_size=4)
states = st.builds(State.new, st.dictionaries(keys, values, max_size=4))


def restored(state: State, checkpoint_id: str | None = "c1") -> State:
    texts = {key: encode(value) for key, value in state.items()}
    return State.restore(texts, state.place, state.timestamp, checkpoint_id)


# Values


@given(st.dictionaries(keys, values, max_size=4))
def test_a_state_holds_an_exact_frozen_copy_of_what_it_was_given(given_in: dict[str, Any]) -> None:
    state = State.new(given_in)
    assert exactly_equal(dict(state.items()), given_in)
    assert all(map(has_only_frozen_containers, map(state.get, state)))
    assert state.keys() == list(state) == list(given_in)
    assert len(state) == len(given_in)
    assert exactly_equal(state.to_dict(), given_in)


@given(states)
def test_a_restored_state_is_the_same_state(state: State) -> None:
    back = restored(state)
    assert exactly_equal(dict(back.items()), dict(state.items()))
    assert back.place == state.place
    assert back.timestamp == state.timestamp
    assert back.checkpoint_id == "c1"
    assert back.keys() == state.keys()


def test_what_was_given_may_change_without_harm() -> None:
    messages: list[Any] = [{"content": "hi"}]
    point = Point([1])
    state = State.new({"messages": messages, "point": point})
    messages[0]["content"] = "changed"
    messages.append(1)
    point.x.append(2)
    assert state.to_dict() == {"messages": [{"content": "hi"}], "point": Point([1])}
    assert state["point"] is not point


def test_what_is_given_out_may_change_without_harm() -> None:
    state = State.new({"a": [{"b": [1]}], "point": Point([1])})
    out = state.to_dict()
    out["a"][0]["b"].append(2)
    out["point"].x.append(2)
    out["point"].y = 5
    assert state.to_dict() == {"a": [{"b": [1]}], "point": Point([1])}


def test_a_change_makes_a_new_state_and_leaves_the_old() -> None:
    old = State.new({"a": 1, "list": [1]}, run_id="r")
    new = old.set("a", 2).append("list", 2, 3).merge({"b": 4}).without("a")
    assert old.to_dict() == {"a": 1, "list": [1]}
    assert new.to_dict() == {"list": [1, 2, 3], "b": 4}


def test_unchanged_values_are_the_same_objects() -> None:
    old = State.new({"a": [1], "b": {"c": 1}})
    new = old.set("x", 1).append("y", 1).without("x").clone().at(step=3)
    assert new["a"] is old["a"] and new["b"] is old["b"]
    assert old.set("a", old["a"])["a"] is old["a"]
    assert State.new({"moved": old["a"]})["moved"] is old["a"]


def test_keys_keep_the_order_in_which_they_were_first_set() -> None:
    state = State.new({"b": 1, "a": 2}).set("c", 3).set("b", 4)
    assert state.keys() == ["b", "a", "c"]
    assert state.without("b").set("b", 5).keys() == ["a", "c", "b"]


def test_reading() -> None:
    state = State.new({"a": None})
    assert state["a"] is None and state.get("a", 5) is None
    assert state.get("z") is None and state.get("z", 5) == 5
    assert "a" in state and "z" not in state
    with pytest.raises(KeyError, match="z"):
        state["z"]
    assert [*state] == ["a"]


def test_merging_a_state_takes_its_values_and_nothing_else() -> None:
    other = State.new({"b": [2]}, run_id="other", secrets={"key": "s"}).at(step=9, node="x")
    state = State.new({"a": 1}, run_id="mine").at(step=2).merge(other)
    assert state.to_dict() == {"a": 1, "b": [2]}
    assert (state.run_id, state.step, state.node) == ("mine", 2, None)
    assert dict(state.secrets) == {}
    assert state["b"] is other["b"]


def test_values_of_another_state_in_place_of_its_own() -> None:
    other = State.new({"b": [2]}, run_id="other")
    state = State.new({"a": 1}, run_id="mine").at(step=2).with_values_of(other)
    assert state.to_dict() == {"b": [2]}
    assert (state.run_id, state.step) == ("mine", 2)


@pytest.mark.parametrize("value", [None, "text", {"a": 1}, (1,), 5])
def test_only_a_list_can_be_appended_to(value: Any) -> None:
    state = State.new({"x": value})
    with pytest.raises(UsageError, match="not a list") as caught:
        state.append("x", 1)
    assert "state.set" in caught.value.hint
    assert state["x"] == value


def test_appending_makes_a_list_if_there_is_none() -> None:
    state = State.new()
    assert state.append("x", 1, [2])["x"] == [1, [2]]
    assert state.append("x")["x"] == []
    assert type(state.append("x")["x"]) is FrozenList


# Errors


class Unknown:
    pass


@pytest.mark.parametrize(
    ("act", "path"),
    [
        (lambda s: s.set("a", Unknown()), "a"),
        (lambda s: s.merge({"ok": 1, "a": {"b": [Unknown()]}}), "a.b[0]"),
        (lambda s: s.append("list", 1, {"x": Unknown()}), "list[1].x"),
        (lambda s: s.append("new", Unknown()), "new[0]"),
        (lambda s: State.new({"a": [Unknown()]}), "a[0]"),
        (lambda s: s.set("a", Point(Unknown())), "a.x"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_once_with_its_path(act: Any, path: str) -> None:
    state = State.new({"list": [0], "a": 1})
    with pytest.raises(EncodeError, match="Unknown") as caught:
        act(state)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")
    assert state.to_dict() == {"list": [0], "a": 1}


@pytest.mark.parametrize("key", [1, None, ("a",), "\ud800", b"a"])
def test_a_key_must_be_a_valid_string(key: Any) -> None:
    for act in (lambda: State.new({key: 1}), lambda: State.new().set(key, 1)):
        with pytest.raises(EncodeError):
            act()


def test_a_state_cannot_be_nested_deeper_than_can_be_read() -> None:
    state = State.new({"x": []})
    for _ in range(DEPTH_LIMIT):
        state = state.set("x", [state["x"]])
    assert exactly_equal(restored(state)["x"], state["x"])
    with pytest.raises(EncodeError, match="nested"):
        state.set("x", [state["x"]])
    with pytest.raises(EncodeError, match="nested"):
        state.append("x", state["x"])


def test_a_state_is_not_made_by_calling_it() -> None:
    with pytest.raises(UsageError, match=r"State\.new"):
        State()


@pytest.mark.parametrize(
    "act",
    [
        lambda s: setattr(s, "step", 5),
        lambda s: setattr(s, "_values", {}),
        lambda s: setattr(s, "other", 5),
        lambda s: delattr(s, "_values"),
        lambda s: s.__setitem__("a", 5),
        lambda s: s.__delitem__("a"),
    ],
)
def test_nothing_of_a_state_can_be_assigned_or_deleted(act: Any) -> None:
    state = State.new({"a": 1})
    with pytest.raises(UsageError, match="frozen"):
        act(state)
    assert state.to_dict() == {"a": 1}


# Place


class Roomy(State):
    """A subclass whose instances have room for more."""


class Bare(State):
    __slots__ = ()


@pytest.mark.parametrize("cls", [Roomy, Bare])
def test_a_subclass_keeps_its_class_through_every_change(cls: type[State]) -> None:
    state = cls.new({"items": [1]}, run_id="r").append("items", 2).at(step=3)
    assert type(state) is cls and type(state.set("round", 1)) is cls
    assert state["items"] == [1, 2] and state.step == 3
    with pytest.raises(UsageError, match="frozen"):
        state.place = state.place


def test_a_new_state_begins_a_new_run_at_step_0() -> None:
    state, other = State.new({"a": 1}), State.new()
    assert state.run_id != other.run_id
    assert (state.name, state.scope, state.step, state.node) == ("", "", 0, None)
    assert (state.kind, state.status, state.tags, state.metadata) == ("routine", "running", (), {})
    assert state.checkpoint_id is None
    assert abs(datetime.now(UTC) - state.timestamp) < timedelta(minutes=1)
    assert state.timestamp.tzinfo is UTC


def test_run_and_place_are_kept_by_every_change() -> None:
    state = State.new({"a": [1]}, run_id="r", name="n", secrets={"k": "s"}).at(
        step=3,
        node="ask",
        kind="final",
        status="completed",
        tags=["x"],
        metadata={"m": 1},
        scope="s",
    )
    for changed in (
        state.set("b", 1),
        state.merge({"b": 1}),
        state.append("a", 2),
        state.without("a"),
        state.clone(),
        state.with_secrets({"other": 1}),
    ):
        assert changed.place is state.place
        assert changed.lineage is state.lineage
        assert changed.secrets["k"] == "s"
        assert changed.timestamp == state.timestamp


def test_at_changes_what_it_is_given_and_keeps_the_rest() -> None:
    state = State.new({"a": 1}, run_id="r").at(step=3, node="ask", tags=["x", "y", "x"])
    assert state.tags == ("x", "y")
    later = state.at(step=4, metadata={"cost": 0.5})
    assert (later.step, later.node, later.tags) == (4, "ask", ("x", "y"))
    assert later.metadata == {"cost": 0.5}
    assert later.at(node=None).node is None
    assert later.set_checkpoint_node("next").checkpoint_node == "next"
    assert state.step == 3 and state.metadata == {}


@pytest.mark.parametrize(("given_in", "kept"), [("in_progress", "running"), ("error", "failed")])
def test_statuses_in_other_spellings_are_read(given_in: str, kept: str) -> None:
    assert State.new().at(status=given_in).status == kept


@pytest.mark.parametrize(
    "given_in",
    [
        {"step": -1},
        {"step": True},
        {"step": 1.0},
        {"step": "1"},
        {"step": None},
        {"step": 1 << 63},
        {"node": 5},
        {"node": "\ud800"},
        {"kind": None},
        {"kind": 5},
        {"status": None},
        {"status": "\ud800"},
        {"scope": None},
        {"scope": b""},
        {"tags": "one"},
        {"tags": [""]},
        {"tags": [5]},
        {"tags": [["x"]]},
        {"tags": ["\ud800"]},
        {"tags": None},
        {"metadata": None},
        {"metadata": [1]},
    ],
)
def test_a_place_that_cannot_be_stored_is_refused(given_in: dict[str, Any]) -> None:
    state = State.new({"a": 1})
    with pytest.raises(UsageError):
        state.at(**given_in)


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": (1,)},
        {1: 2},
        {"a": {1: 2}},
        {"a": Point(1)},
        {"a": float("nan")},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": object()},
        {"$t": 1},
    ],
)
def test_metadata_must_be_plain_json(metadata: dict[Any, Any]) -> None:
    with pytest.raises(EncodeError):
        State.new().at(metadata=metadata)


@given(st.dictionaries(st.text(max_size=3), plain_values, max_size=3))
def test_metadata_is_copied_in_and_frozen(metadata: dict[str, Any]) -> None:
    if b'"$t"' in encode(metadata):
        return
    kept = State.new().at(metadata=metadata).metadata
    assert exactly_equal(kept, metadata)
    assert has_only_frozen_containers(kept)
    assert read_metadata(kept) is kept  # type: ignore[arg-type]


def test_tags_are_read_from_any_iterable() -> None:
    assert read_tags(iter(["a", "b", "a"])) == ("a", "b")


@pytest.mark.parametrize("run_id", ["", 5, "a\0b", "\ud800", "x" * 70_000])
def test_a_run_id_that_cannot_name_a_run_is_refused(run_id: Any) -> None:
    with pytest.raises(UsageError, match="run_id"):
        State.new(run_id=run_id)
    if run_id != "":
        with pytest.raises(UsageError, match="name"):
            State.new(name=run_id)


def test_a_state_at_another_place_has_another_time() -> None:
    state = State.new({"a": 1}, run_id="r")
    moved = state.placed(Place(run_id="other", step=7))
    assert (moved.run_id, moved.step, moved["a"]) == ("other", 7, 1)
    assert moved.timestamp >= state.timestamp
    assert moved.lineage is state.lineage


# Lineage


def test_all_states_made_from_one_another_share_their_checkpoint() -> None:
    first = State.new({"a": [1]})
    second = first.append("a", 2)
    third = second.at(step=2)
    second.lineage.checkpoint_id = "c7"
    assert first.checkpoint_id == third.checkpoint_id == "c7"
    assert State.new({"a": [1]}).checkpoint_id is None
    assert isinstance(first.lineage, Lineage)


# Secrets

SECRET = "sk-very-secret-7731"


def with_secret() -> State:
    return State.new({"a": 1, "live": Point(1)}, run_id="r", secrets={"api_key": SECRET})


def test_secrets_travel_with_the_state() -> None:
    state = with_secret().set("b", 1).at(step=2).append("c", 1)
    assert state.secrets["api_key"] == SECRET
    more = state.with_secrets({"other": 2})
    assert dict(more.secrets) == {"api_key": SECRET, "other": 2}
    assert "other" not in state.secrets
    with pytest.raises(TypeError):
        state.secrets["x"] = 1  # type: ignore[index]


def test_secrets_are_never_shown() -> None:
    state = with_secret()
    record = logging.LogRecord("x", 10, "f", 1, "%s %r %s", (state, state, state.secrets), None)
    shown = [repr(state), str(state), repr(state.secrets), str(state.secrets), record.getMessage()]
    shown += [repr(state.to_dict()), repr(state.items()), repr(state.place), f"{state.secrets}"]
    assert not [text for text in shown if SECRET in text]
    assert repr(state.secrets) == "<Secrets api_key>"


def test_secrets_are_not_among_what_is_saved() -> None:
    values, _ = with_secret().for_saving()
    assert SECRET not in repr({key: encode(value) for key, value in values.items()})


def test_a_pickled_state_leaves_its_secrets_behind() -> None:
    state = with_secret().at(step=3, node="x", tags=["t"], metadata={"m": [1]}).set("b", (1, {2}))
    state.lineage.checkpoint_id = "c1"
    text = pickle.dumps(state)
    assert SECRET.encode() not in text
    back = pickle.loads(text)
    assert back == state
    assert exactly_equal(dict(back.items()), dict(state.items()))
    assert type(back) is State and type(back.metadata) is FrozenDict
    assert (back.timestamp, back.checkpoint_id) == (state.timestamp, "c1")
    assert dict(back.secrets) == {}
    assert has_only_frozen_containers(back["b"])
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(state.secrets)


@given(states)
def test_a_state_survives_pickling(state: State) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(state, protocol))
        assert exactly_equal(dict(back.items()), dict(state.items()))
        assert back.place == state.place


# Equality and copies


def test_states_are_equal_that_have_equal_values_at_the_same_place() -> None:
    state = State.new({"a": [1], "b": 2}, run_id="r")
    same = State.new({"b": 2, "a": [1]}, run_id="r", secrets={"x": 1})
    assert state == same
    assert state != state.set("a", [2])
    assert state != state.at(step=1)
    assert state != State.new({"a": [1], "b": 2}, run_id="other")
    assert state != {"a": [1], "b": 2}
    assert state == restored(state)
    with pytest.raises(TypeError, match="unhashable"):
        hash(state)


def test_a_copy_of_a_state_is_the_state() -> None:
    state = State.new({"a": [1]})
    assert copy.copy(state) is state and copy.deepcopy(state) is state
    assert copy.deepcopy([state])[0] is state


def test_what_is_shown_of_a_state() -> None:
    state = State.new({"a": 1, "b": "long"}, run_id="r")
    assert repr(state) == "<State r step 0: a, b>"
    assert repr(state.at(step=2, node="ask")) == "<State r step 2 at ask: a, b>"


# Lazy values and live objects

LONG = ["x" * 100] * (LAZY_BYTES // 100 + 1)


def test_a_long_value_is_decoded_when_it_is_first_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []

    def counted(text: bytes, *, frozen: bool = False) -> Any:
        decoded.append(text)
        return decode(text, frozen=frozen)

    monkeypatch.setattr("surehold.core.values.patch.decode", counted)
    state = State.new({"long": LONG, "short": 1})
    back = restored(state)
    decoded.clear()
    values, natures = back.set("short", 2).at(step=1).without("other").clone().for_saving()
    assert decoded == []
    assert type(values["long"]) is Lazy and natures["long"] is Nature.TAGGED
    assert "long" in back and back.keys() == ["long", "short"]
    assert decoded == []
    assert back["long"] is back["long"]
    assert back["long"] == LONG
    assert len(decoded) == 1
    assert back.append("long", "y")["long"] == [*LONG, "y"]
    assert len(decoded) == 1


def test_a_live_object_in_a_long_value_is_saved_as_it_is_now() -> None:
    back = restored(State.new({"long": [Point(1), *LONG]}))
    assert back.for_saving()[1]["long"] is Nature.TAGGED
    back["long"][0].x = 2
    values, natures = back.for_saving()
    assert natures["long"] is Nature.LIVE
    assert decode(encode(values["long"]))[0] == Point(2)


def test_a_live_object_may_change_and_its_state_with_it() -> None:
    state = State.new({"point": Point(1)})
    state["point"].x = 2
    values, natures = state.for_saving()
    assert natures["point"] is Nature.LIVE
    assert encode(values["point"]) == encode(Point(2))


def test_for_saving_does_not_change_the_state() -> None:
    back = restored(State.new({"long": [Point(1), *LONG], "a": 1}))
    first = back.for_saving()
    assert back["long"][0] == Point(1)
    second = back.for_saving()
    assert type(first[0]["long"]) is Lazy and type(second[0]["long"]) is FrozenList
    assert "long" not in back._natures


# Saving through something


class Manager:
    def __init__(self) -> None:
        self.saved: list[State] = []

    def save_checkpoint(self, state: State) -> str:
        self.saved.append(state)
        return "c1"


def test_a_state_is_saved_through_a_manager() -> None:
    state, manager = State.new({"a": 1}), Manager()
    assert state.checkpoint(manager) == "c1"
    assert manager.saved == [state]


def test_without_a_manager_a_state_says_how_to_get_one() -> None:
    """The core alone has none; a process of its own keeps the rest of surehold out."""
    program = "from surehold.core.state.state import State; State.new().checkpoint()"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "UsageError: there is no manager to save through (import surehold" in ran.stderr


def test_a_subclass_keeps_its_class() -> None:
    class Mine(State):
        pass

    state = Mine.new({"a": [1]})
    for made in (state.set("b", 1), state.append("a", 2), state.at(step=1), state.clone()):
        assert type(made) is Mine


def test_secrets_are_a_mapping() -> None:
    secrets = Secrets({"a": 1})
    assert (secrets["a"], len(secrets), [*secrets], "a" in secrets) == (1, 1, ["a"], True)
    assert secrets == {"a": 1}
