"""Values of pandas come back as what they were, at every door, or are refused."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import numpy
import pandas
import pytest
from pandas import testing

import surehold
from surehold import MemoryStorage, State
from surehold.core.values import decode, encode
from surehold.errors import DecodeError, EncodeError

BERLIN = pandas.date_range("2026-03-28 23:30", periods=4, freq="h", tz="Europe/Berlin")
NAMED = pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["letter", None])


def compared(made: Any, value: Any) -> None:
    assert type(made) is type(value)
    if isinstance(value, pandas.DataFrame):
        testing.assert_frame_equal(made, value, check_freq=True, check_flags=True)
    elif isinstance(value, pandas.Series):
        testing.assert_series_equal(made, value, check_freq=True, check_flags=True)
    elif isinstance(value, pandas.Index):
        testing.assert_index_equal(made, value, exact=True)
    elif value is pandas.NaT or value is pandas.NA:
        assert made is value
    else:
        assert made == value and made.unit == value.unit
        assert str(getattr(made, "tz", None)) == str(getattr(value, "tz", None))


def read_again(value: Any) -> Any:
    return decode(encode({"a": value}), strict=True)["a"]


TABLE = pandas.DataFrame(
    {
        "n": [1, 2, 3],
        "small": numpy.array([1, 2, 3], "u1"),
        "x": [0.5, float("nan"), float("inf")],
        "text": ["kelp", None, "sea"],
        "any": pandas.Series([(1, 2), None, {"a": [1]}], dtype=object),
        "flag": [True, False, True],
        "maybe": pandas.array([1, None, 3], dtype="Int64"),
        "maybe flag": pandas.array([True, None, False], dtype="boolean"),
        "when": pandas.to_datetime(["2026-11-18", None, "2026-11-20"]),
        "where": pandas.Series(BERLIN[:3]),
        "long": pandas.to_timedelta(["1s", None, "3 days"]),
        "kind": pandas.Categorical(["a", "b", "a"], categories=["b", "a"], ordered=True),
    }
)


@pytest.mark.parametrize(
    "value",
    [
        TABLE,
        TABLE.set_index("when"),
        TABLE.iloc[:0],
        TABLE.iloc[[2, 0]],
        pandas.DataFrame(),
        pandas.DataFrame(index=[1, 2]),
        pandas.DataFrame([[1, "a"], [2, "b"]], columns=["same", "same"]),
        pandas.DataFrame([[1, 2]], columns=NAMED),
        pandas.DataFrame({"x": [1, 2]}, index=NAMED),
        pandas.Series([1.0, 2.0], name="s", index=["p", "q"]),
        pandas.Series([1, "a", None], dtype=object),
        pandas.Series(["a", None], dtype="string"),
        pandas.Series([], dtype="float32"),
        pandas.Series(["a", None, "b"], dtype="category"),
        pandas.RangeIndex(1, 9, 2, name="r"),
        pandas.Index([1, 2], name=("a", 1)),
        pandas.Index(["a", "b"]),
        pandas.CategoricalIndex(["a", "b"]),
        pandas.TimedeltaIndex(["1s", "2s"]),
        BERLIN,
        NAMED,
        pandas.Timestamp("2026-11-18T10:00:00.000000001"),
        pandas.Timestamp("2026-10-25T01:30", tz="UTC").tz_convert("Europe/Berlin"),
        pandas.Timestamp("2026-11-18", tz="UTC"),
        pandas.Timedelta(1, "ns"),
        pandas.NaT,
        pandas.NA,
    ],
    ids=repr,
)
def test_a_value_of_pandas_comes_back_as_what_it_was(value: Any) -> None:
    compared(read_again(value), value)
    compared(State.new({"a": value}).to_dict()["a"], value)


def test_what_describes_a_table_is_kept() -> None:
    value = TABLE.copy()
    value.attrs["source"] = "the sea"
    again = read_again(value)
    assert again.attrs == {"source": "the sea"}
    again.loc[0, "n"] = 9
    assert again["n"].tolist() == [9, 2, 3]


def test_a_step_gives_a_table_again_in_the_next_process() -> None:
    storage, made = MemoryStorage(), []

    @surehold.step
    def load() -> pandas.DataFrame:
        made.append(1)
        return TABLE

    @surehold.step
    def count(table: pandas.DataFrame) -> int:
        table["n"] += 1
        return int(table["n"].sum())

    def start() -> surehold.Run:
        with surehold.run("r", storage=storage) as run:
            table = load()
            run.state.update(sum=count(table), table=table)
        return run

    with pytest.warns(RuntimeWarning, match="changes its argument 'table' in place"):
        start()
    run = start()
    compared(run.state["table"], TABLE)
    assert (made, run.state["sum"]) == ([1], 9)


class Sub(pandas.DataFrame):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    "value",
    [
        Sub({"a": [1]}),
        pandas.DataFrame({"a": pandas.arrays.SparseArray([0, 1])}),
        pandas.Series(pandas.interval_range(0, 2)),
        pandas.period_range("2026-01", periods=2, freq="M"),
        pandas.Series([object()], dtype=object),
        pandas.array([1, None], dtype="Int64"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_pandas_could_not_rebuild_is_refused(value: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        encode({"a": value})
    assert "list(value)" not in str(caught.value)  # of a table, its columns


def test_a_zone_without_a_name_is_refused() -> None:
    class Odd(ZoneInfo):
        def __str__(self) -> str:
            return "a zone of mine"

    with pytest.raises(EncodeError, match="tz_convert"):
        encode(pandas.Timestamp("2026-11-18").tz_localize(Odd("Europe/Berlin")))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("DataFrame", [[["Sparse[int]", [1]]], ["RangeIndex", [0, 1, 1], None], [], {}]),
        ("Series", [["object; import os", []], ["RangeIndex", [0, 0, 1], None], None, {}]),
        ("Index", ["Index", [["no dtype", []], None], None]),
        ("Timestamp", ["a moment", None]),
        ("DataFrame", 7),
    ],
)
def test_forged_values_of_pandas_are_refused(name: str, parts: Any) -> None:
    text = b'{"$t":"pandas.%b","v":%b}' % (name.encode(), encode(parts))
    with pytest.raises(DecodeError):
        decode(text, strict=True)
