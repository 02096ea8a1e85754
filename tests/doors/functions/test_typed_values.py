"""Arguments and results have the types of the annotations, on the first call as on a replay."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from surehold import MemoryStorage, effect, step, workflow
from surehold.errors import EncodeError, ShapeError, UsageError


@dataclasses.dataclass
class Page:
    name: str
    where: pathlib.Path = pathlib.Path("/")


class Model(pydantic.BaseModel):
    when: dt.datetime
    where: pathlib.Path


class Struct(msgspec.Struct):
    number: int


class Typed(TypedDict):
    number: int
    day: NotRequired[dt.date]


class Pair(NamedTuple):
    left: int
    right: str


class Color(enum.Enum):
    RED = "red"


NOW = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
MODEL = Model(when=NOW, where=pathlib.Path("/a"))

SAME = [
    (Page("a"), Page),
    ([Page("a"), Page("b")], list[Page]),
    ({"k": Page("a")}, dict[str, Page]),
    (None, Page | None),
    (MODEL, Model),
    (MODEL, Model | None),
    ([MODEL], list[Model]),
    ({"k": [MODEL]}, dict[str, list[Model]]),
    (Struct(1), Struct),
    ({"number": 1, "day": NOW.date()}, Typed),
    (Pair(1, "a"), Pair),
    (Color.RED, Color),
    (NOW, dt.datetime),
    (decimal.Decimal("1.10"), decimal.Decimal),
    (uuid.UUID(int=5), uuid.UUID),
    (pathlib.Path("/a"), pathlib.Path),
    (b"\x00\xff", bytes),
    ((1, "a"), tuple[int, str]),
    ({1, 2}, set[int]),
    (collections.OrderedDict(a=1), collections.OrderedDict),
    (collections.Counter("aab"), collections.Counter),
    ([1, 2], list[int]),
]
CONVERTED = [
    (3, float, 3.0),
    ([1, 2], tuple[int, int], (1, 2)),
    ("red", Color, Color.RED),
    ("/a", pathlib.Path, pathlib.Path("/a")),
    ("2026-11-16T12:00:00Z", dt.datetime, NOW),
    ({"name": "a"}, Page, Page("a")),
]


def echo(hint: Any, seen: list[Any]) -> Any:
    """A workflow that returns what its step returned, both annotated with *hint*."""

    def same(value: Any) -> Any:
        return value

    same.__annotations__ = {"return": hint}

    def plan(value: Any) -> Any:
        seen.append(made := step(in_doubt="retry")(same)(value))
        if len(seen) == 1:
            raise ConnectionError
        return made

    plan.__annotations__ = {"value": hint, "return": hint}
    return workflow(name="plan")(plan)


@pytest.mark.parametrize(
    ("value", "hint", "made"), [*((value, hint, value) for value, hint in SAME), *CONVERTED]
)
def test_run_resume_result_and_a_replayed_step_give_the_same(
    value: Any, hint: Any, made: Any
) -> None:
    storage, seen = MemoryStorage(), []
    plan = echo(hint, seen)
    with pytest.raises(ConnectionError):
        plan.run(value, run_id="r", storage=storage)
    again = plan.run(value, run_id="r", storage=storage).value
    found = plan.result("r", storage=storage).value
    for one in (*seen, again, found):
        assert one == made and type(one) is type(made)
        if isinstance(made, list):
            assert [type(item) for item in one] == [type(item) for item in made]


def test_a_result_that_its_annotation_does_not_allow_fails_the_run() -> None:
    storage = MemoryStorage()

    @workflow
    def wrong() -> str:
        return None  # type: ignore[return-value]

    with pytest.raises(UsageError, match="wrong did not return what its annotation says"):
        wrong.run(run_id="r", storage=storage)
    assert wrong.result("r", storage=storage).status == "failed"


def test_a_step_result_that_does_not_fit_is_kept_and_refused_at_once() -> None:
    storage, made = MemoryStorage(), []

    def charge(hint: Any) -> Any:
        def charge() -> Any:
            made.append(1)
            return 5

        charge.__annotations__ = {"return": hint}
        called = step(charge)

        def pays() -> Any:
            return called()

        return workflow(pays)

    for _ in range(2):
        with pytest.raises(ShapeError, match="does not fit its annotation"):
            charge(str).run(run_id="r", storage=storage)
    assert charge(int).run(run_id="r", storage=storage).value == 5
    assert made == [1]


def test_a_class_that_a_replay_could_not_make_again_is_refused_at_once() -> None:
    @dataclasses.dataclass
    class Local:
        name: str

    @workflow
    def unannotated():  # type: ignore[no-untyped-def]
        return Local("a")

    with pytest.raises(EncodeError, match="Local") as caught:
        unannotated.run(run_id="r", storage=MemoryStorage())
    assert any("annotate the result of" in note for note in caught.value.__notes__)


def test_a_step_can_be_a_method() -> None:
    class Shop:
        def __init__(self) -> None:
            self.made: list[int] = []

        @step(in_doubt="retry")
        def pay(self, amount: int) -> int:
            self.made.append(amount)
            return amount

        @workflow
        def plan(self) -> None:
            """A workflow cannot be one."""

    shop, storage = Shop(), MemoryStorage()

    @workflow
    def plan() -> int:
        made = shop.pay(5)
        if len(shop.made) == 1:
            shop.made.append(0)
            raise ConnectionError
        return int(made)

    with pytest.raises(ConnectionError):
        plan.run(run_id="r", storage=storage)
    assert plan.run(run_id="r", storage=storage).value == 5
    assert shop.made == [5, 0]
    with pytest.raises(UsageError, match="is a method"):
        shop.plan.run(run_id="s", storage=storage)


@pytest.mark.parametrize("make", [step, workflow])
def test_what_cannot_be_a_step_or_a_workflow_is_refused(make: Any) -> None:
    def items() -> Iterator[int]:
        yield 1

    with pytest.raises(UsageError, match="items yields"):
        make(items)
    for wrong in (5, "x"):
        with pytest.raises(UsageError, match="cannot be a"):
            make(wrong)
    with pytest.raises(UsageError, match="'len' is a step already"):
        make(step(len))
    with pytest.raises(UsageError, match="name is 5"):
        make(name=5)(len)


def test_an_effect_needs_a_name_and_a_function() -> None:
    with pytest.raises(UsageError, match="name is 5"):
        effect(5, len)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'len' cannot be called"):
        effect("size", "len")  # type: ignore[arg-type]


def returns_nothing() -> None: ...


def test_an_iterator_or_a_function_cannot_be_stored() -> None:
    @workflow
    def returns(what: str) -> Any:
        return iter([1]) if what == "iterator" else returns_nothing

    with pytest.raises(EncodeError, match="store a list of its items"):
        returns.run("iterator", run_id="a", storage=MemoryStorage())
    with pytest.raises(EncodeError, match="the function returns_nothing cannot be stored"):
        returns.run("function", run_id="b", storage=MemoryStorage())


@pytest.mark.parametrize("wrong", [("r", 3), (), (3, "r")])
def test_wrong_arguments_are_told_what_the_workflow_takes(wrong: tuple[Any, ...]) -> None:
    @workflow(storage="memory://")
    def job(pages: int, *, fast: bool = False) -> int:
        return pages

    with pytest.raises(UsageError, match=r"it takes \(pages, \*, fast\).*run_id= .*by name"):
        job.run(*wrong)


def test_a_misspelled_option_of_run_is_named() -> None:
    @workflow(storage="memory://")
    def job(pages: int) -> int:
        return pages

    with pytest.raises(UsageError, match="did you mean run_id"):
        job.run(runid="r")  # type: ignore[call-arg]
