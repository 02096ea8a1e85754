"""Whether an answer fits what a question's schema says."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest

from surehold.core.policy.answer_schema import describe_schema, validate_answer


class Size(msgspec.Struct, forbid_unknown_fields=True):
    width: int
    unit: Literal["m", "km"] = "m"
    inner: Size | None = None


class Open(msgspec.Struct):
    width: int


FIT = [
    (True, bool),
    (3, int),
    (3.0, int),
    (3, float),
    ("m", Literal["m", "km"]),
    ("2026-01-01T00:00:00Z", datetime),
    (5, Decimal),
    (datetime(2026, 1, 1), datetime),
    ((1, 2), str),
    ({"width": 1}, Size),
    (Size(1), Size),
    ({"width": 1, "inner": {"width": 2, "inner": None}}, Size),
    ({"width": "1", "other": 2}, Open),
    ([1, "a"], list[int]),
    (None, int | None),
    ("anything", Any),
]


@pytest.mark.parametrize(("value", "wanted"), FIT)
def test_what_may_fit_is_let_through(value: Any, wanted: Any) -> None:
    assert validate_answer(value, msgspec.json.schema(wanted)) == ""
    assert validate_answer(value, None) == ""


UNFIT = [
    ("True", bool, '"True" is not true or false'),
    (True, int, "true is not an integer"),
    (2.5, int, "2.5 is not an integer"),
    ("cm", Literal["m", "km"], '"cm" is not "km" or "m"'),
    (None, str, "null is not a string"),
    ("no", Size, '"no" is not {width, unit, inner}'),
    ({}, Size, "width is missing"),
    ({"width": 1, "hight": 2}, Size, "hight is unknown"),
    ({"width": "x"}, bool | Size, 'width is "x", not an integer'),
    ({"width": 1, "inner": {"width": []}}, Size, "inner.width is [], not an integer"),
    ("no", bool | Size, '"no" is not true, false, or {width, unit, inner}'),
    ("x" * 99, int, '"' + "x" * 38 + "… is not an integer"),
]


@pytest.mark.parametrize(("value", "wanted", "problem"), UNFIT)
def test_what_plainly_does_not_fit_is_told(value: Any, wanted: Any, problem: str) -> None:
    assert validate_answer(value, msgspec.json.schema(wanted)) == problem


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (bool, "true or false"),
        (int | None, "an integer or null"),
        (bool | Size, "true, false, or {width, unit, inner}"),
        (dict[str, int], "an object"),
        (Any, "anything"),
    ],
)
def test_what_fits_is_told_in_words(wanted: Any, words: str) -> None:
    assert describe_schema(msgspec.json.schema(wanted)) == words
