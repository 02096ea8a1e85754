"""Every state can be rebuilt, to the byte, from a keyframe and the deltas after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch as replaced

import jsonpatch
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.values import Meter, Node, Person, Point, exactly_equal, plain_values, text, values

from surehold.core.state import state as state_module
from surehold.core.state.state import State
from surehold.core.values.codec import decode, encode, parse, take_in
from surehold.core.values.frozen import Nature
from surehold.core.values.patch import (
    Base,
    Lazy,
    changes,
    whole,
)
from surehold.core.values.rebuild import Operation, Rebuilt, operations, touches
from surehold.errors import CorruptError, EncodeError

Draw = Callable[[st.SearchStrategy[Any]], Any]

keys = st.sampled_from(["a", "b", "c", "", "-", "0", "~", "/", "~1", "a/b", "$t", "é"])


def sorted_text(tree: Any) -> bytes:
    """A text that says everything of a JSON tree but the order of keys."""
    return msgspec.json.encode(tree, order="sorted")


def joined(texts: Mapping[str, bytes]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (encode(key), text) for key, text in texts.items())


class Followed:
    """Saves states as a journal does, and checks after each what a reader would rebuild."""

    def __init__(self, values: Mapping[str, Any], natures: Mapping[str, Nature]) -> None:
        text, self.base = whole(values, natures)
        assert self.base.size == len(text)
        self.rebuilt = Rebuilt(text)
        self.document = parse(text)
        self.saved = [text]
        self.patches: list[bytes] = []

    def save(self, values: Mapping[str, Any], natures: Mapping[str, Nature]) -> bytes | None:
        expected, _ = whole(values, natures)
        patch, self.base = changes(self.base, values, natures)
        assert (patch is None) is (expected == self.saved[-1])
        if patch is not None:
            self.rebuilt.apply(patch)
            self.document = jsonpatch.apply_patch(self.document, msgspec.json.decode(patch))
            self.patches.append(patch)
        assert joined(self.rebuilt.texts()) == expected
        assert self.base.size == len(expected)
        assert sorted_text(self.document) == sorted_text(parse(expected))
        self.saved.append(expected)
        return patch

    def check_from_the_start(self) -> None:
        """The same from the stored text alone, without the texts read on the way."""
        rebuilt = Rebuilt(self.saved[0])
        for patch in self.patches:
            rebuilt.apply(patch)
        assert joined(rebuilt.texts()) == self.saved[-1]


def edited(draw: Draw, value: Any) -> Any:
    """*value* with something small changed; what is not changed is the same object."""
    if isinstance(value, list) and value:
        made = list(value)
        index = draw(st.integers(0, len(made) - 1))
        match draw(
            st.sampled_from(["edit", "insert", "delete", "cut", "extend", "behead", "swap"])
        ):
            case "edit":
                made[index] = edited(draw, made[index])
            case "insert":
                made.insert(index, draw(values))
            case "delete":
                del made[index]
            case "cut":
                del made[index:]
            case "extend":
                made.extend(draw(st.lists(values, max_size=3)))
            case "behead":
                del made[:index]
            case "swap":
                made[index], made[0] = made[0], made[index]
        return made
    if isinstance(value, dict) and value:
        made = dict(value)
        key = draw(st.sampled_from([*made]))
        match draw(st.sampled_from(["edit", "add", "delete", "move"])):
            case "edit":
                made[key] = edited(draw, made[key])
            case "add":
                made[draw(keys | text)] = draw(values)
            case "delete":
                del made[key]
            case "move":
                made[key] = made.pop(key)
        return made
    if isinstance(value, tuple) and value:
        return (*value[:-1], edited(draw, value[-1]))
    return draw(values)


def objects_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Point | Meter | Node | Person):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from objects_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from objects_in(item)


FIELDS = {Point: "x", Meter: "limit", Node: "value", Person: "name"}


def next_state(draw: Draw, state: State) -> State:
    key = draw(st.sampled_from(state.keys()) | keys) if len(state) else draw(keys)
    match draw(
        st.sampled_from(["set", "merge", "append", "edit", "without", "move", "live", "reload"])
    ):
        case "set":
            return state.set(key, draw(values))
        case "merge":
            return state.merge(draw(st.dictionaries(keys, values, max_size=3)))
        case "append" if isinstance(state.get(key, []), list):
            return state.append(key, *draw(st.lists(values, max_size=3)))
        case "edit" if key in state:
            return state.set(key, edited(draw, state[key]))
        case "without":
            return state.without(*draw(st.lists(keys, max_size=2)), key)
        case "move" if key in state:
            return state.without(key).set(key, state[key])
        case "live":
            for each in objects_in([*map(state.get, state)]):
                setattr(each, FIELDS[type(each)], draw(values))
        case "reload":
            texts = {k: encode(v) for k, v in state.items()}
            return State.restore(texts, state.place, datetime.now(UTC), "c1")
    return state


@given(st.data(), st.sampled_from([0, 8, 1 << 16]))
def test_every_state_is_rebuilt_exactly_from_a_keyframe_and_patches(
    data: st.DataObject, lazy_bytes: int
) -> None:
    with replaced.object(state_module, "LAZY_BYTES", lazy_bytes):
        state = State.new(data.draw(st.dictionaries(keys, values, max_size=4)))
        followed = Followed(*state.for_saving())
        for _ in range(data.draw(st.integers(1, 6))):
            state = next_state(data.draw, state)
            followed.save(*state.for_saving())
        followed.check_from_the_start()


def change_in_place(draw: Draw, value: Any) -> None:
    """Change something in a mutable value, keeping every container the object that it is."""
    if isinstance(value, list) and value and draw(st.booleans()):
        change_in_place(draw, value[draw(st.integers(0, len(value) - 1))])
    elif isinstance(value, list):
        value[:] = edited(draw, value) if value else draw(st.lists(values, max_size=2))
    elif isinstance(value, dict) and value:
        key = draw(st.sampled_from([*value]))
        if draw(st.booleans()):
            change_in_place(draw, value[key])
        else:
            made = edited(draw, value)
            value.clear()
            value.update(made)
    elif isinstance(value, set):
        value ^= {draw(st.integers(0, 3))}
    elif type(value) in FIELDS:
        setattr(value, FIELDS[type(value)], draw(values))


@given(st.data())
def test_every_state_of_mutable_values_is_rebuilt_exactly(data: st.DataObject) -> None:
    state = data.draw(st.dictionaries(keys, values, max_size=4))
    followed = Followed(dict(state), dict.fromkeys(state, Nature.LIVE))
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["in place", "in place", "set", "delete", "reorder"])):
            case "in place":
                change_in_place(data.draw, state)
            case "set":
                state[data.draw(keys)] = data.draw(values)
            case "delete" if state:
                del state[data.draw(st.sampled_from([*state]))]
            case "reorder":
                state = {key: state[key] for key in data.draw(st.permutations([*state]))}
        state = {key: value for key, value in state.items() if key.isprintable()}
        followed.save(dict(state), dict.fromkeys(state, Nature.LIVE))
    followed.check_from_the_start()


@given(st.data())
def test_a_run_may_be_saved_now_as_a_frozen_state_and_now_as_mutable_values(
    data: st.DataObject,
) -> None:
    state = State.new(data.draw(st.dictionaries(keys, values, max_size=3)))
    followed = Followed(*state.for_saving())
    for _ in range(data.draw(st.integers(1, 4))):
        state = next_state(data.draw, state)
        if data.draw(st.booleans()):
            followed.save(*state.for_saving())
        else:
            ordinary = state.to_dict()
            followed.save(ordinary, dict.fromkeys(ordinary, Nature.LIVE))
            for value in ordinary.values():
                change_in_place(data.draw, value)
            state = State.new(ordinary)
    followed.check_from_the_start()


def test_a_mutable_value_is_compared_with_what_was_saved_not_with_what_it_is_now() -> None:
    state = {"x": [1]}
    followed = Followed(state, {"x": Nature.LIVE})
    state["x"].append(2)
    assert paths(followed.save(*State.new(state).for_saving())) == ["add /x/-"]


@given(st.lists(plain_values, max_size=6), st.lists(plain_values, max_size=6))
@example([1], [12])
@example([1], [1.5, 2])
@example([0], [False])
@example([{"a": 1}], [{"a": 1.0}])
@example([0.0], [-0.0])
@example([1, 2, 3, 4], [1, 4])
@example([1, 2, 3], [0, 1, 2, 3])
def test_any_list_can_become_any_other(old: list[Any], new: list[Any]) -> None:
    frozen = State.new({"x": old})
    followed = Followed(*frozen.for_saving())
    followed.save(*frozen.set("x", new).for_saving())
    mutable = Followed({"x": old}, {"x": Nature.LIVE})
    mutable.save({"x": new}, {"x": Nature.LIVE})
    texts = Followed({"x": Lazy(encode(old))}, {"x": Nature.TAGGED})
    texts.save({"x": Lazy(encode(new))}, {"x": Nature.TAGGED})


# What a patch costs


def paths(patch: bytes | None) -> list[str]:
    return [f"{step.op} {step.path}" for step in operations(patch or b"[]")]


def test_a_list_that_grew_costs_its_tail() -> None:
    state = State.new({"messages": [{"n": n} for n in range(1000)], "round": 1})
    followed = Followed(*state.for_saving())
    patch = followed.save(*state.append("messages", {"n": 1000}, "x").for_saving())
    assert patch == (
        b'[{"op":"add","path":"/messages/-","value":{"n":1000}},'
        b'{"op":"add","path":"/messages/-","value":"x"}]'
    )


def test_a_mutable_list_that_grew_costs_its_tail_as_well() -> None:
    state = {"messages": [{"n": n} for n in range(1000)]}
    followed = Followed(state, {"messages": Nature.LIVE})
    state["messages"].append({"n": 1000})
    assert paths(followed.save(state, {"messages": Nature.LIVE})) == ["add /messages/-"]


@pytest.mark.parametrize("mutable", [False, True])
def test_only_what_differs_is_in_a_patch(mutable: bool) -> None:
    state: dict[str, Any] = {
        "plan": [{"task": task, "done": False} for task in "abcd"],
        "log": {"x": [1], "y": 2},
    }

    def as_saved() -> Any:
        return (
            (state, dict.fromkeys(state, Nature.LIVE)) if mutable else State.new(state).for_saving()
        )

    followed = Followed(*as_saved())
    state["plan"][1]["done"] = True
    assert paths(followed.save(*as_saved())) == ["replace /plan/1/done"]
    del state["plan"][2]
    assert paths(followed.save(*as_saved())) == ["remove /plan/2"]
    state["plan"].insert(1, "new")
    assert paths(followed.save(*as_saved())) == ["add /plan/1"]
    state["log"]["z"] = 3
    del state["log"]["x"]
    assert paths(followed.save(*as_saved())) == ["remove /log/x", "add /log/z"]
    assert followed.save(*as_saved()) is None


def test_a_value_that_changed_all_over_is_replaced_whole() -> None:
    many = {f"key {n}": n for n in range(500)}
    for nature in (Nature.PLAIN, Nature.LIVE):
        old, new = take_in(many)[0], take_in({key: -1 for key in many})[0]
        followed = Followed({"x": old}, {"x": nature})
        assert paths(followed.save({"x": new}, {"x": nature})) == ["replace /x"]


def test_keys_in_another_order_replace_the_whole_state() -> None:
    state = State.new({"a": 1, "b": 2, "c": 3})
    followed = Followed(*state.for_saving())
    assert paths(followed.save(*state.without("a").set("a", 1).for_saving())) == ["replace "]
    assert list(followed.rebuilt.texts()) == ["b", "c", "a"]
    nested = State.new({"x": {"a": 1, "b": 2}})
    followed = Followed(*nested.for_saving())
    assert paths(followed.save(*nested.set("x", {"b": 2, "a": 1}).for_saving())) == ["replace /x"]


def test_nothing_changed_is_no_patch() -> None:
    state = State.new({"a": [1, {"b": (2,)}], "live": Point(1)})
    followed = Followed(*state.for_saving())
    assert followed.save(*state.for_saving()) is None
    assert followed.save(*state.set("a", [1, {"b": (2,)}]).for_saving()) is None


def test_lists_grown_from_one_another_by_many_threads_are_never_confused() -> None:
    state = State.new({"x": [0]})
    _, base = whole(*state.for_saving())
    made: list[State] = []
    start = threading.Barrier(4)

    def grow(worker: int) -> None:
        start.wait()
        for n in range(300):
            made.append(state.append("x", worker * 1000 + n))

    threads = [threading.Thread(target=grow, args=[n]) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = made[0]["x"]
    assert not any(first.grew_from(each["x"]) for each in made[1:])
    for each in made:
        patch, _ = changes(base, *each.for_saving())
        rebuilt = Rebuilt(b'{"x":[0]}')
        rebuilt.apply(patch or b"[]")
        assert rebuilt.texts()["x"] == encode(each["x"])


def test_a_lazy_value_is_one_object_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    both_decode = threading.Barrier(2)

    def slow(text: bytes, *, frozen: bool = False) -> Any:
        both_decode.wait(timeout=300)
        return decode(text, frozen=frozen)

    monkeypatch.setattr("surehold.core.values.patch.decode", slow)
    lazy = Lazy(encode([Point(1)]))
    assert not lazy.resolved
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(lazy.get())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lazy.resolved
    assert seen[0] is seen[1] is lazy.get()


# Errors


@pytest.mark.parametrize("key", [1, None, ("a",), "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused(key: Any) -> None:
    _, base = whole({}, {})
    with pytest.raises(EncodeError):
        whole({key: 1}, {key: Nature.LIVE})
    with pytest.raises(EncodeError):
        changes(base, {key: 1}, {key: Nature.LIVE})


def test_an_encode_error_names_the_key_and_leaves_the_base_as_it_was() -> None:
    state: dict[str, Any] = {"a": [1], "b": 1}
    natures = dict.fromkeys(state, Nature.LIVE)
    _, base = whole(state, natures)
    before = (dict(base.values), dict(base.live), base.size)
    state["a"].append(2)
    state["b"] = {"x": [object()]}
    for act in (lambda: changes(base, state, natures), lambda: whole(state, natures)):
        with pytest.raises(EncodeError, match="object is not a type") as caught:
            act()
        assert caught.value.path == "b.x[0]"
    assert (base.values, base.live, base.size) == before


@pytest.mark.parametrize(
    "patch",
    [
        b'[{"op":"replace","path":"/b","value":1}]',
        b'[{"op":"add","path":"/a","value":1}]',
        b'[{"op":"remove","path":"/b"}]',
        b'[{"op":"remove","path":"/a/x"}]',
        b'[{"op":"replace","path":"/a/x","value":1}]',
        b'[{"op":"add","path":"/a/k","value":1}]',
        b'[{"op":"add","path":"/list/3","value":1}]',
        b'[{"op":"replace","path":"/list/2","value":1}]',
        b'[{"op":"replace","path":"/list/-","value":1}]',
        b'[{"op":"remove","path":"/list/-1"}]',
        b'[{"op":"remove","path":"/list/-"}]',
        b'[{"op":"add","path":"/list/x","value":1}]',
        b'[{"op":"add","path":"/a/k/deep","value":1}]',
        b'[{"op":"add","path":"/none/-","value":1}]',
        b'[{"op":"move","path":"/c","value":1}]',
        b'[{"op":"replace","path":"","value":[]}]',
        b'[{"op":"add"}]',
        b"[{]",
    ],
)
def test_a_patch_that_does_not_fit_is_corrupt(patch: bytes) -> None:
    rebuilt = Rebuilt(b'{"a":{"k":5},"list":[1,2]}')
    with pytest.raises(CorruptError, match="does not fit"):
        rebuilt.apply(patch)


def test_an_empty_key_inside_a_value_is_not_the_value() -> None:
    state = State.new({"a": {"": 1}})
    followed = Followed(*state.for_saving())
    assert paths(followed.save(*state.set("a", {"": 2}).for_saving())) == ["replace /a/"]


def test_a_key_with_half_a_surrogate_pair_can_change() -> None:
    state = State.new({"a": {"\ud800": 1, "b": [1]}})
    followed = Followed(*state.for_saving())
    followed.save(*state.set("a", {"\ud800": 2, "b": [1]}).for_saving())


# Small things


def test_an_operation_gives_its_value_as_it_was() -> None:
    state = State.new({"a": 1})
    _, base = whole(*state.for_saving())
    patch, _ = changes(base, *state.set("a", (1, 2)).set("b", None).for_saving())
    replace, add = operations(patch or b"")
    assert exactly_equal(replace.content(), (1, 2))
    assert add.content() is None
    assert Operation("remove", "/a").content() is None


@pytest.mark.parametrize(
    ("path", "asked", "touched"),
    [
        ("/a/-", "/a", True),
        ("/a", "/a/0/b", True),
        ("/a", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/ab", False),
        ("", "/a", True),
        ("/b/a", "/a", False),
    ],
)
def test_what_an_operation_touches(path: str, asked: str, touched: bool) -> None:
    assert touches(Operation("replace", path), asked) is touched


def test_a_base_tells_the_text_of_a_value_as_it_was_saved() -> None:
    state = {"live": [1]}
    _, base = whole(state, {"live": Nature.LIVE})
    state["live"].append(2)
    assert base.text_of("live") == b"[1]"
    assert Base({"lazy": Lazy(b"[3]")}, {}, 0).text_of("lazy") == b"[3]"
    assert decode(Base({"frozen": take_in((4,))[0]}, {}, 0).text_of("frozen")) == (4,)


def test_texts_of_one_moment_stay_what_they_were_when_the_state_goes_on() -> None:
    state = Rebuilt(b'{"x":[],"y":[1],"z":{"a":1}}')
    moments = []
    for patch in (
        b"[]",
        b'[{"op":"add","path":"/x/-","value":1}]',
        b'[{"op":"add","path":"/x/-","value":2},{"op":"add","path":"/y/-","value":2}]',
        b'[{"op":"replace","path":"/x/0","value":9},{"op":"add","path":"/z/b","value":2}]',
        b'[{"op":"add","path":"/x/-","value":3}]',
    ):
        state.apply(patch)
        moments.append((state.texts_of_now(), dict(state.texts_of_now())))
    for texts, then in moments:
        assert dict(texts) == then
    assert [then["x"] for _, then in moments] == [b"[]", b"[1]", b"[1,2]", b"[9,2]", b"[9,2,3]"]
    assert moments[-1][1] == state.texts()
    assert len(moments[0][0]) == 3
