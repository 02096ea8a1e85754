"""Everything comes back as it was, and nothing that is stored can make the decoder act."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from pathlib import Path, PureWindowsPath
from typing import Any, Generic, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.values import (
    Color,
    Meter,
    Money,
    Node,
    Open,
    Pair,
    Person,
    Point,
    Right,
    Stamped,
    exactly_equal,
    has_only_frozen_containers,
    look_alikes,
    plain_values,
    scalars,
    unchanging,
    values,
)

from surehold.core.values import codec
from surehold.core.values.codec import (
    Opaque,
    UnknownTypeWarning,
    decode,
    encode,
    encode_tree,
    give_out,
    parse,
    register_type,
    take_in,
    weigh,
)
from surehold.core.values.frozen import DEPTH_LIMIT, FrozenDict, FrozenList, FrozenSet, Nature
from surehold.errors import DecodeError, EncodeError, SureholdError, UsageError


@pytest.fixture(autouse=True, scope="module")
def only_types_of_tests() -> Iterator[None]:
    """What an integration has registered in this process is not known here."""
    with pytest.MonkeyPatch.context() as patch:
        for table in ("_by_class", "_by_name"):
            known = {
                key: entry
                for key, entry in getattr(codec, table).items()
                if entry.cls is bytearray or entry.cls.__module__.startswith("tests")
            }
            patch.setattr(codec, table, known)
        yield


@given(values | look_alikes(values))
@example({"$t": "dict", "v": [["$t", 1]]})
@example({"$t": {"$t": {"$t": None}}})
@example({"\ud800": {"\udfff": "\ud83d"}})
@example({1: "a", None: "b", (1, 2): "c", 2.5: "d", "1": "e", b"1": "f"})
@example([1, 1.0, True, 0, -0.0, False, 0.0])
@example([float("nan"), float("inf"), -float("inf"), 1 << 64, -(1 << 63) - 1])
@example([[], {}, (), set(), frozenset(), "", b""])
@example(Person(name=1, age_=2))
@example(Open(known=1, **{"$t": "tuple", "v": [1]}))
@example(Path("a\udcff"))
@example(time(tzinfo=timezone(timedelta(microseconds=1))))
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    text = encode(value)
    assert exactly_equal(decode(text), value)
    assert exactly_equal(decode(text, frozen=True), value)


@given(values)
def test_a_value_taken_in_is_an_exact_copy_that_is_frozen_and_of_the_same_text(value: Any) -> None:
    taken, nature = take_in(value)
    assert exactly_equal(taken, value)
    assert has_only_frozen_containers(taken)
    assert has_only_frozen_containers(decode(encode(value), frozen=True))
    assert nature is weigh(value) is weigh(taken)
    assert encode(taken) == encode(taken, nature) == encode(value)


@given(values)
def test_text_is_ordinary_utf8_json_that_a_parse_does_not_change(value: Any) -> None:
    text = encode(value)
    assert encode_tree(parse(text)) == text
    assert msgspec.json.decode(text) == parse(text)


@given(values)
def test_what_is_given_out_is_ordinary_all_through(value: Any) -> None:
    given_out = give_out(take_in(value)[0])
    assert exactly_equal(given_out, value)
    assert not has_only_frozen_containers([given_out])
    ordinary = decode(encode(value))
    assert frozen_containers_in(given_out) == frozen_containers_in(ordinary) == 0


def frozen_containers_in(value: Any) -> int:
    here = isinstance(value, FrozenList | FrozenDict | FrozenSet)
    if isinstance(value, dict):
        return here + sum(map(frozen_containers_in, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return here + sum(map(frozen_containers_in, value))
    if isinstance(value, pydantic.BaseModel):
        return frozen_containers_in(value.__getstate__())
    if isinstance(value, msgspec.Struct):
        return frozen_containers_in(msgspec.structs.asdict(value))
    if isinstance(value, Point | Pair | Meter):
        names = [name for name in value.__dataclass_fields__ if hasattr(value, name)]
        return frozen_containers_in([getattr(value, name) for name in names])
    return int(here)


@given(plain_values)
def test_what_json_says_exactly_is_written_without_tags(value: Any) -> None:
    tree = {"value": value}
    if b'"$t"' not in msgspec.json.encode(tree):
        assert weigh(tree) is Nature.PLAIN
        assert encode(tree) == msgspec.json.encode(tree)


@given(st.sets(st.text(max_size=3), min_size=2, max_size=6), st.randoms())
def test_a_set_has_one_text_whatever_order_it_was_filled_in(items: set[str], random: Any) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)
    assert encode(set(shuffled)) == encode(items)
    assert encode(frozenset(shuffled)) == encode(frozenset(items))


@given(scalars)
def test_a_scalar_needs_at_most_a_tag(value: Any) -> None:
    tree = parse(encode(value))
    assert tree is value or exactly_equal(tree, value) or {*tree} == {"$t", "v"}


def test_taking_in_does_not_alias_what_was_given() -> None:
    point = Point([1], {"a": {1}})
    given_in = {"point": point, "list": [point.x]}
    taken, nature = take_in(given_in)
    point.x.append(2)
    point.y["a"].add(2)
    given_in["more"] = 1
    assert nature is Nature.LIVE
    assert taken == {"point": Point([1], {"a": {1}}), "list": [[1]]}
    assert taken["point"] is not point


def test_what_is_frozen_already_is_not_copied_again() -> None:
    taken, _ = take_in({"a": [1, {"b": 2}]})
    assert take_in(taken)[0] is taken
    assert take_in([taken])[0][0] is taken


# Moments


def test_a_zone_keeps_its_name_and_its_class() -> None:
    zones = [timezone(timedelta(hours=1), "CET"), ZoneInfo("Europe/Berlin"), UTC]
    for zone in zones:
        for moment in (datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1), time(1, tzinfo=zone)):
            back = decode(encode(moment))
            assert type(back.tzinfo) is type(zone)
            assert back.tzinfo.tzname(back if isinstance(back, datetime) else None) == zone.tzname(
                moment if isinstance(moment, datetime) else None
            )
            assert back.fold == moment.fold
            assert back.replace(tzinfo=None) == moment.replace(tzinfo=None)


def test_a_moment_that_pydantic_read_can_be_stored() -> None:
    class Event(pydantic.BaseModel):
        at: datetime

    moment = Event.model_validate_json('{"at":"2026-01-01T10:00:00+01:30"}').at
    back = decode(encode(moment))
    assert back == moment
    assert back.utcoffset() == timedelta(minutes=90)
    assert back.tzinfo == moment.tzinfo


class Nowhere(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize("store", [encode, take_in])
def test_a_zone_of_an_unknown_class_is_refused(store: Any) -> None:
    with pytest.raises(EncodeError, match=r"at\[0\]: .*Nowhere is not a type") as caught:
        store({"at": [datetime(2026, 1, 1, tzinfo=Nowhere())]})
    assert caught.value.path == "at[0]"
    with pytest.raises(EncodeError, match="Nowhere"):
        store(time(1, tzinfo=Nowhere()))


@pytest.mark.parametrize("store", [encode, take_in])
def test_a_zone_without_a_name_is_refused(store: Any) -> None:
    with open("/usr/share/zoneinfo/Europe/Berlin", "rb") as data:
        zone = ZoneInfo.from_file(data)
    with pytest.raises(EncodeError, match="has no name"):
        store(datetime(2026, 1, 1, tzinfo=zone))


# Paths


def test_a_path_of_another_system_comes_back_as_a_pure_one() -> None:
    tree = {"$t": "windows-path", "v": "C:\\x"}
    assert exactly_equal(decode(encode_tree(tree)), PureWindowsPath("C:\\x"))


# Classes of the user's own


def test_an_object_comes_back_without_a_call_to_its_constructor() -> None:
    meter = Meter(5)
    meter.count = 7
    stamped = Stamped(value=1)
    person = Person(name="x")
    for value in (meter, stamped, person):
        assert exactly_equal(decode(encode(value)), value)
    assert not hasattr(decode(encode(meter)), "total")


def test_a_combined_flag_comes_back() -> None:
    both = Right.READ | Right.WRITE
    assert decode(encode([both, Right(0)])) == [both, Right(0)]


def test_the_name_of_an_enum_member_is_stored_not_its_value() -> None:
    assert encode(Color.BLUE) == b'{"$t":"Color","v":"BLUE"}'
    assert decode(encode(Color.AZURE)) is Color.BLUE


def test_fields_that_a_class_gained_since_get_their_defaults() -> None:
    @dataclass
    class Job:
        name: str
        tries: int = 3
        log: list[Any] = field(default_factory=list)

    class Model(pydantic.BaseModel):
        name: str
        tries: int = 3
        log: list[Any] = pydantic.Field(default_factory=list)

    class Struct(msgspec.Struct):
        name: str
        tries: int = 3
        log: list[Any] = []

    for name, cls in (("job", Job), ("model", Model), ("struct", Struct)):
        register_type(cls, f"gained-{name}")
    job, other = (decode(b'{"$t":"gained-job","v":{"name":"x"}}') for _ in range(2))
    assert job == Job("x", 3, []) and job.log is not other.log
    model = decode(b'{"$t":"gained-model","v":{"fields":{"name":"x"},"set":["name"]}}')
    assert model == Model(name="x") and model.model_fields_set == {"name"}
    assert decode(b'{"$t":"gained-struct","v":{"name":"x"}}') == Struct("x")


@pytest.mark.parametrize(
    "text",
    [
        b'{"$t":"Point","v":{"x":1,"y":2,"z":3}}',
        b'{"$t":"Point","v":{"y":2}}',
        b'{"$t":"Node","v":{"value":1,"gone":2}}',
        b'{"$t":"Node","v":{}}',
        b'{"$t":"Person","v":{"fields":{"name":1,"gone":2},"set":[]}}',
        b'{"$t":"Person","v":{"fields":{"age":2},"set":[]}}',
        b'{"$t":"Color","v":"GREEN"}',
        b'{"$t":"money","v":{"euros":[1]}}',
        b'{"$t":"money","v":{"cents":[]}}',
    ],
)
def test_stored_parts_that_a_class_has_no_place_for_are_an_error_not_a_loss(text: bytes) -> None:
    with pytest.raises(DecodeError, match="cannot be read") as caught:
        decode(text)
    assert caught.value.tag in ("Point", "Node", "Person", "Color", "money")
    assert "as it was when the value was saved" in caught.value.hint


def test_a_field_that_is_not_set_is_refused() -> None:
    point, node = Point(1), Node(1)
    del point.x
    del node.value
    empty = Person.model_construct(age=1)
    for value in (point, node, empty):
        with pytest.raises(EncodeError, match="not set") as caught:
            encode({"a": [value]})
        assert caught.value.path == "a[0]"


def test_a_decode_function_gets_ordinary_containers_even_in_a_frozen_value() -> None:
    assert decode(encode([Money(3)]), frozen=True) == [Money(3)]


def test_an_encode_function_that_fails_is_an_encode_error_with_a_path() -> None:
    class Odd:
        pass

    register_type(Odd, "odd", encode=lambda value: 1 / 0, decode=lambda tree: Odd())
    for store in (encode, take_in):
        with pytest.raises(EncodeError, match=r"a\[1\]: odd cannot be encoded") as caught:
            store({"a": [0, Odd()]})
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_encode_function_that_returns_its_own_class_ends() -> None:
    class Loop:
        pass

    register_type(Loop, "loop", encode=lambda value: value, decode=lambda tree: Loop())
    for store in (encode, take_in):
        with pytest.raises(EncodeError, match="nested"):
            store(Loop())


T = TypeVar("T")


def test_what_a_class_must_be_to_be_registered() -> None:
    class Plain:
        pass

    @dataclass
    class Table(dict[str, int]):
        name: str = ""

    @dataclass
    class Failure(Exception):
        code: int = 0

    for cls in (Plain, Table, Failure):
        with pytest.raises(UsageError, match=cls.__qualname__) as caught:
            register_type(cls)
        assert "encode= and decode=" in caught.value.hint
        with pytest.raises(EncodeError, match="not a type that can be stored"):
            encode(cls())

    @register_type
    @dataclass
    class Box(Generic[T]):
        item: T

    assert decode(encode(Box([1]))) == Box([1])


def test_a_name_is_given_once() -> None:
    first, second = make_dataclass("First", ["a"]), make_dataclass("Second", ["a"])
    register_type(first, "taken-name")
    with pytest.raises(UsageError, match="taken by First"):
        register_type(second, "taken-name")
    with pytest.raises(UsageError, match="already registered as 'taken-name'"):
        register_type(first, "other-name")
    with pytest.raises(EncodeError):
        encode(second(1))


def test_a_class_defined_again_takes_its_own_place() -> None:
    def define() -> Any:
        @dataclass
        class Again:
            a: int

        return register_type(Again, "again")

    old, new = define(), define()
    assert type(decode(encode(old(1)))) is new
    assert type(decode(encode(new(1)))) is new


@pytest.mark.parametrize("name", ["tuple", "dict", "datetime", "int", "path", "", "\ud800", 5])
def test_a_name_that_cannot_be_a_tag_of_its_own_is_refused(name: Any) -> None:
    with pytest.raises(UsageError):
        register_type(make_dataclass("Thing", ["a"]), name)


@pytest.mark.parametrize("cls", [datetime, list, FrozenList, str, Opaque])
def test_a_built_in_type_cannot_be_registered_over(cls: type) -> None:
    with pytest.raises(UsageError, match="cannot be registered"):
        register_type(cls, "mine", encode=str, decode=cls)


def test_encode_and_decode_go_together() -> None:
    with pytest.raises(UsageError, match="go together"):
        register_type(Generic, "half", encode=str)


# What cannot be stored


class Unknown:
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Unknown(), ""),
        ({"a": [1, {"b": Unknown()}]}, "a[1].b"),
        ([0, (1, {2: Unknown()})], "[1][1][2]"),
        ({"a": {Unknown(): 1}}, "a."),
        ({"a": {(1, Unknown())}}, "a[0][1]"),
        ({"a": {(1, 2): [Unknown()]}}, "a.(1, 2)[0]"),
        ({"a": Point(1, [Unknown()])}, "a.y[0]"),
        ({"a": Person(name={"b": Unknown()})}, "a.fields.name.b"),
        ({"a": memoryview(b"")}, "a"),
        ({"a": 1 + 0j, "b": slice(1)}, "b"),
    ],
)
@pytest.mark.parametrize("store", [encode, take_in])
def test_an_unknown_type_is_refused_with_the_path_to_it(store: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError, match="is not a type that can be stored") as caught:
        store(value)
    assert caught.value.path.startswith(path) and (path or not caught.value.path)
    assert caught.value.hint and str(caught.value).startswith(caught.value.path)


def test_a_long_key_is_cut_in_the_path() -> None:
    for key in ("k" * 10_000, 10**5000, (b"x" * 10_000,), (10**5000,)):
        for store in (encode, take_in):
            with pytest.raises(EncodeError, match="not a type") as caught:
                store({key: Unknown()})
            assert len(str(caught.value)) < 400


def test_numbers_that_python_refuses_to_print_come_back() -> None:
    for number in (10**5000, -(10**5000)):
        assert decode(encode([number, {number: number}])) == [number, {number: number}]


NESTED: list[Any] = [
    lambda inner: [inner],
    lambda inner: {"a": inner},
    lambda inner: {1: inner},
    lambda inner: {"$t": inner},
    lambda inner: (inner,),
    Point,
    Node,
    lambda inner: Person(name=inner),
    lambda inner: Pair((inner, {"a": inner})),
]


def nested(wrap: Any, levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = wrap(inner)
    return inner


def called_from(frames: int, function: Any) -> Any:
    return called_from(frames - 1, function) if frames else function()


@pytest.mark.parametrize("wrap", NESTED[:-1])
def test_all_that_is_deep_enough_to_be_stored_can_be_read_on_a_used_stack(wrap: Any) -> None:
    # The fields of a pydantic model stand in a dict of their own.
    value = nested(wrap, DEPTH_LIMIT // 2 if type(wrap(1)) is Person else DEPTH_LIMIT)
    text = encode(value)
    used = len_of_stack()

    def both() -> tuple[Any, Any]:
        take_in(value)
        return decode(text), decode(text, frozen=True)

    for read in called_from(400 - used, both):
        assert exactly_equal(read, value)


def len_of_stack() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.parametrize("wrap", NESTED)
@pytest.mark.parametrize("levels", [DEPTH_LIMIT + 2, 400])
def test_absurd_depth_is_refused(wrap: Any, levels: int) -> None:
    if wrap is NESTED[-1]:
        # Every level holds the next one twice.
        value = nested(wrap, 2, nested(NESTED[0], DEPTH_LIMIT))
    else:
        value = nested(wrap, levels)
    for store in (encode, take_in):
        with pytest.raises(EncodeError, match="nested more than"):
            store({"a": value})


@given(
    st.lists(st.sampled_from(NESTED[:6]), min_size=DEPTH_LIMIT - 1, max_size=DEPTH_LIMIT + 3),
    st.sampled_from([1, "x", None, [], {}]),
)
def test_what_is_not_too_deep_to_be_written_is_not_too_deep_to_be_read(
    wraps: list[Any], value: Any
) -> None:
    for wrap in wraps:
        value = wrap(value)
    stored = []
    for store in (encode, take_in):
        try:
            store(value)
            stored.append(True)
        except EncodeError:
            stored.append(False)
    assert stored in ([True, True], [False, False])
    if stored[0]:
        assert exactly_equal(decode(encode(value), frozen=True), value)


@pytest.mark.parametrize("wrap", [NESTED[0], NESTED[1], NESTED[4]])
def test_a_value_nested_a_hundred_thousand_deep_does_not_harm_the_interpreter(wrap: Any) -> None:
    value = nested(wrap, 100_000)
    for store in (encode, take_in, weigh):
        with pytest.raises(EncodeError, match="nested more than") as caught:
            store(value)
        assert len(str(caught.value)) < 1000


def test_a_raised_recursion_limit_does_not_lift_the_depth_limit() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        point = Point(1)
        point.x = point
        for value in (point, nested(NESTED[0], 100_000)):
            for store in (encode, take_in):
                with pytest.raises(EncodeError, match="nested more than"):
                    store(value)
    finally:
        sys.setrecursionlimit(before)


def test_a_stack_that_is_used_up_is_no_reason_to_crash() -> None:
    value = nested(NESTED[0], 80)
    text = encode(value)
    left = sys.getrecursionlimit() - len_of_stack()
    for store in (encode, take_in, weigh):
        with pytest.raises(EncodeError, match="nested"):
            called_from(left - 60, lambda store=store: store(value))
    for frozen in (False, True):
        # From Python 3.12 on a decoder in C has a stack of its own, and may have room.
        with suppress(DecodeError) if sys.version_info >= (3, 12) else pytest.raises(DecodeError):
            called_from(left - 60, lambda frozen=frozen: decode(text, frozen=frozen))


def cycles() -> list[Any]:
    items: list[Any] = [1]
    items.append({"again": items})
    table: dict[str, Any] = {}
    table["self"] = [table]
    point = Point(1)
    point.x = [point]
    person = Person(name=1)
    person.name = (person,)
    return [items, table, point, person]


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("store", [encode, take_in, weigh])
def test_a_cycle_is_refused(store: Any, index: int) -> None:
    if store is weigh and index > 1:
        return  # what an object holds is seen when it is encoded
    with pytest.raises(EncodeError, match=r"contains itself \(leave out") as caught:
        store({"a": cycles()[index]})
    assert caught.value.path.startswith("a") and len(caught.value.path) <= 24


def test_a_bytearray_comes_back_as_one() -> None:
    back = decode(encode({"raw": bytearray(b"\x00kelp")}))["raw"]
    assert type(back) is bytearray and back == b"\x00kelp"


def test_frozen_values_cannot_be_stacked_beyond_the_depth_limit() -> None:
    taken: Any = []
    for _ in range(DEPTH_LIMIT):
        taken, _ = take_in([taken])
    assert exactly_equal(decode(encode(taken), frozen=True), taken)
    for wrapped in ([taken], {"a": taken}, (taken,), [0, {"a": [taken]}]):
        for store in (take_in, encode):
            with pytest.raises(EncodeError, match="nested more than"):
                store(wrapped)


def test_an_object_in_an_object_costs_what_it_holds_and_not_twice_as_much() -> None:
    tree = nested(lambda inner: Point([inner]), DEPTH_LIMIT // 2)
    assert exactly_equal(take_in(tree)[0], tree)
    assert exactly_equal(decode(encode(tree), frozen=True), tree)
    odd = nested(lambda inner: {1: ({1: inner},)}, 30)
    assert exactly_equal(take_in(odd)[0], odd)


# What is read


HOSTILE = """
import sys, warnings
from surehold.core.values.codec import decode, encode_tree
from surehold.errors import DecodeError

warnings.simplefilter("ignore")
seen = []
watching = False
sys.addaudithook(lambda event, args: seen.append(event) if watching else None)
tags = ["os.system", "builtins.eval", "subprocess.Popen", "surehold.errors.UsageError"]
trees = [
    tree
    for tag in tags
    for tree in (
        {"$t": tag, "v": ["true"]},
        {"$t": tag, "v": {"args": ["true"], "__reduce__": tag}},
        {"__class__": tag, "py/object": tag, "py/reduce": [tag, ["true"]]},
        {"lc": 1, "type": "constructor", "id": tag.split("."), "kwargs": {}},
        {"$t": "tuple", "v": [{"$t": tag, "v": None}]},
        {"$t": "datetime", "v": ["2026-01-01T00:00:00", "UTC", 0], "also": tag},
    )
]
texts = [encode_tree(tree) for tree in trees]
watching = True
for text in texts:
    for frozen in (False, True):
        try:
            decode(text, frozen=frozen)
        except DecodeError:
            pass
watching = False
print(sorted(set(seen)))
"""


def test_no_text_makes_the_decoder_import_open_or_call_anything() -> None:
    """Python itself is asked: its audit events tell of every import, file, process and code."""
    ran = subprocess.run(
        [sys.executable, "-c", HOSTILE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    seen = ast.literal_eval(ran.stdout)
    assert not [e for e in seen if e not in ("object.__getattr__", "sys._getframe")], seen


@pytest.mark.parametrize("frozen", [False, True])
@given(tree=plain_values)
def test_a_value_of_an_unknown_type_survives_unchanged(frozen: bool, tree: Any) -> None:
    unknown = {"$t": "from-the-future", "v": tree}
    text = encode_tree({"a": [unknown, {"$t": "tuple", "v": [unknown]}]})
    with pytest.warns(UnknownTypeWarning, match="from-the-future"):
        value = decode(text, frozen=frozen)
    opaque = value["a"][0]
    assert opaque == Opaque("from-the-future", encode_tree(tree))
    assert encode(value) == text
    assert encode(take_in(value)[0]) == text
    assert encode(give_out(value)) == text


def test_an_unknown_type_survives_where_values_must_be_hashable() -> None:
    unknown = {"$t": "from-the-future", "v": {"a": [1]}}
    trees = [
        {"$t": "set", "v": [unknown]},
        {"$t": "frozenset", "v": [unknown]},
        {"$t": "dict", "v": [[unknown, 1]]},
    ]
    for tree in trees:
        for frozen in (False, True):
            with pytest.warns(UnknownTypeWarning):
                value = decode(encode_tree(tree), frozen=frozen)
            assert encode(value) == encode_tree(tree)


def test_whoever_makes_warnings_errors_is_told_of_an_unknown_type_by_one() -> None:
    text = b'{"$t":"tuple","v":[{"$t":"from-the-future","v":1}]}'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnknownTypeWarning):
            decode(text)


def test_a_type_registered_later_reads_what_was_opaque() -> None:
    text = b'{"$t":"late","v":{"a":1}}'
    with pytest.warns(UnknownTypeWarning):
        opaque = decode(text)
    late = register_type(make_dataclass("Late", ["a"]), "late")
    assert decode(encode([opaque])) == [late(1)]


@pytest.mark.parametrize(
    "tree",
    [
        {"$t": "tuple"},
        {"$t": "tuple", "v": "abc"},
        {"$t": "tuple", "v": [1], "x": 2},
        {"$t": "set", "v": [[1]]},
        {"$t": "frozenset", "v": 5},
        {"$t": "dict", "v": {"ab": 1}},
        {"$t": "dict", "v": [["a", 1, 2]]},
        {"$t": "dict", "v": [[[1], 2]]},
        {"$t": "bytes", "v": "*"},
        {"$t": "str", "v": "AA"},
        {"$t": "int", "v": "12g"},
        {"$t": "int", "v": 1},
        {"$t": "float", "v": "1.5"},
        {"$t": "float", "v": []},
        {"$t": "complex", "v": [1]},
        {"$t": "datetime", "v": "yesterday"},
        {"$t": "datetime", "v": ["2026-01-01T00:00:00", "Not/AZone", 0]},
        {"$t": "datetime", "v": ["2026-01-01T00:00:00", "../../../etc/passwd", 0]},
        {"$t": "datetime", "v": ["2026-01-01T00:00:00", None, 2]},
        {"$t": "datetime", "v": 5},
        {"$t": "date", "v": "2026-13-01"},
        {"$t": "time", "v": []},
        {"$t": "timedelta", "v": [10**18]},
        {"$t": "decimal", "v": "x"},
        {"$t": "uuid", "v": "x"},
        {"$t": "path", "v": 5},
        {"$t": ["tuple"], "v": [1]},
        {"$t": None},
        {"a": [{"$t": "tuple", "v": {"$t": "tuple"}}]},
        {"$t": "tuple", "v": [{"$t": "int", "v": "x"}]},
    ],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_tag_that_does_not_fit_its_value_is_a_decode_error(tree: Any, frozen: bool) -> None:
    with pytest.raises(DecodeError):
        decode(encode_tree(tree), frozen=frozen)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"nul", b'"\xff"', b"[1,]", b'{"a":1}}', b"NaN", b"[" * 100_000, b'"\\ud800"'],
)
def test_text_that_is_not_json_is_a_decode_error(text: bytes) -> None:
    for frozen in (False, True):
        with pytest.raises(DecodeError, match="not readable"):
            decode(text, frozen=frozen)


@pytest.mark.parametrize("frozen", [False, True])
def test_text_nested_deeper_than_anything_stored_is_a_decode_error(frozen: bool) -> None:
    tagged = b'{"$t":"tuple","v":[' * 300 + b"]}" * 300
    plain = b"[" * 300 + b"]" * 300
    with pytest.raises(DecodeError):
        called_from(500, lambda: decode(tagged, frozen=frozen))
    if frozen:
        with pytest.raises(DecodeError):
            decode(plain, frozen=True)


def test_a_tag_is_recognised_in_any_spelling() -> None:
    assert decode(b'{"\\u0024t":"tuple","v":[1]}') == (1,)
    assert decode(b'{"\\u0024t":"tuple","v":[1]}', frozen=True) == (1,)


@given(st.binary(max_size=40) | st.text('{}[]":,$tv0', max_size=30).map(str.encode))
def test_no_text_can_raise_anything_but_our_own_errors(text: bytes) -> None:
    for frozen in (False, True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                decode(text, frozen=frozen)
        except SureholdError:
            pass


@given(unchanging)
def test_values_without_objects_are_never_live(value: Any) -> None:
    nature = weigh(value)
    assert nature is not Nature.LIVE or b'"money"' in encode(value) or b'"Pair"' in encode(value)


def test_the_registry_is_closed() -> None:
    class Hidden(Enum):
        A = 1

    with pytest.raises(EncodeError, match="Hidden"):
        encode(Hidden.A)
    assert Hidden not in codec._by_class


def test_decimals_keep_their_exponent_sign_and_payload() -> None:
    for text in ("1E+3", "1000", "-0", "0E-10", "NaN123", "-sNaN5", "Infinity", "1.10"):
        assert decode(encode(Decimal(text))).as_tuple() == Decimal(text).as_tuple()


def test_a_forgotten_await_and_a_function_are_refused_with_what_to_do() -> None:
    async def fetch() -> str:
        return "kelp"

    unfinished = fetch()
    with pytest.raises(EncodeError, match="unfinished coroutine") as caught:
        encode({"page": unfinished})
    unfinished.close()
    assert "await" in caught.value.hint
    for function in (lambda: 1, print, "".join):
        with pytest.raises(EncodeError, match=r"function .* cannot be stored") as caught:
            encode({"callback": function})
        assert "register_type" not in caught.value.hint


def test_only_a_class_can_be_registered() -> None:
    with pytest.raises(UsageError, match="is not a class"):
        register_type(lambda value: value)  # type: ignore[arg-type]
