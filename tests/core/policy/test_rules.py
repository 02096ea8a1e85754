from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surehold.core.policy.rules import Age, Rules
from surehold.errors import UsageError

NOW = datetime(2024, 5, 15, 12, 0, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment", "before"),
    [
        ("24h", "2024-05-15T12:00", "2024-05-14T12:00"),
        ("7d", "2024-03-03T00:00", "2024-02-25T00:00"),
        ("1m", "2024-03-31T12:00", "2024-02-29T12:00"),
        ("1m", "2023-03-31T12:00", "2023-02-28T12:00"),
        ("1m", "2024-01-15T12:00", "2023-12-15T12:00"),
        ("1y", "2024-02-29T12:00", "2023-02-28T12:00"),
        ("2y5m7d3h", "2024-05-15T12:00", "2021-12-08T09:00"),
        ("13m", "2024-12-31T00:00", "2023-11-30T00:00"),
    ],
)
def test_an_age_counts_by_the_calendar(text: str, moment: str, before: str) -> None:
    assert Age.of(text).before(at(moment)) == at(before)


def test_an_age_longer_than_the_calendar_reaches_its_beginning() -> None:
    beginning = datetime.min.replace(tzinfo=UTC)
    for age in ("2024y", "9999y", "999999d999999h", timedelta.max):
        assert Age.of(age).before(NOW) == beginning


@pytest.mark.parametrize(
    ("age", "text"),
    [
        ("24h", "24h"),
        (timedelta(days=7), "7d"),
        (timedelta(hours=30), "1d6h"),
        (timedelta(minutes=90), "1:30:00"),
    ],
)
def test_an_age_reads_as_it_was_given(age: str | timedelta, text: str) -> None:
    assert str(Age.of(age)) == text


@pytest.mark.parametrize(
    "wrong", ["", "1w", "7", "0d", "d", "3h2d", "-1d", "1 d", "1d\n", "9999999d", 24, timedelta(0)]
)
def test_what_is_no_age_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"keep_within.*is not a positive age") as caught:
        Rules(keep_within=wrong)
    assert "2y5m7d3h" in caught.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"keep_last": 0},
        {"keep_last": -1},
        {"keep_last": True},
        {"keep_last": 2.0},
        {"keep_daily": "many"},
        {"keep_every": 0},
        {"keep_every": "unlimited"},
        {"keep_tags": [1]},
        {"keep_tags": 1},
        {"keep_failed": "soon"},
        {"max_age": "-1d"},
        {"delete_on_success": "yes"},
        {"keep_until_released": 1},
        {"by_kind": ["routine"]},
        {"by_kind": {"routine": {"keep_last": 1}}},
        {"by_kind": {1: Rules()}},
        {"by_kind": {"routine": Rules(group_by="name")}},
        {"by_kind": {"routine": Rules(by_kind={"x": Rules()})}},
        {"group_by": "scope"},
    ],
    ids=repr,
)
def test_a_wrong_rule_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))) as caught:
        Rules(**wrong)
    assert caught.value.hint


def test_an_unknown_status_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'completed'"):
        Rules(keep_status=["complete"])


def test_other_spellings_of_a_status_are_read() -> None:
    assert Rules(keep_status=["error"]) == Rules(keep_status=["failed"])


def test_rules_come_from_a_file_or_a_command_line() -> None:
    rules = Rules.from_mapping(
        {
            "keep-last": "20",
            "keep_within": "24h",
            "keep_hourly": "unlimited",
            "keep_daily": None,
            "keep_tags": "keep",
            "by_kind": {"recovery": {"max_age": "7d"}, "routine": {"keep_last": 3}},
            "group_by": "name",
        }
    )
    assert rules == Rules(
        keep_last=20,
        keep_within=timedelta(hours=24),
        keep_hourly="unlimited",
        keep_tags=["keep"],
        by_kind={"recovery": Rules(max_age="7d"), "routine": Rules(keep_last=3)},
        group_by="name",
    )
    assert Rules.from_mapping({}) == Rules()


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"keep_lsat": 3}, "no retention rule 'keep_lsat' .did you mean 'keep_last'"),
        ({"banana": 3}, "no retention rule 'banana' .choose from keep_last, "),
        ({"keep-last": 3, "keep_last": 4}, "keep_last is given twice"),
        ({"keep_last": "three"}, "keep_last is 'three'"),
        ({"keep_within": 24}, "keep_within: 24 is not a positive age"),
        ({"by_kind": {"routine": {"keep_lat": 3}}}, "by_kind 'routine': .*keep_lat"),
        ({"by_kind": {"routine": {"keep_last": 0}}}, "by_kind 'routine': keep_last is 0"),
        ({"by_kind": {"routine": 3}}, "by_kind 'routine': retention is 3"),
        (["keep_last"], "retention is"),
    ],
)
def test_a_mistake_in_a_file_is_named(mapping: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Rules.from_mapping(mapping)


def test_every_rule_is_checked_and_can_come_from_a_file() -> None:
    for field in dataclasses.fields(Rules):
        with pytest.raises(UsageError, match=field.name):
            Rules.from_mapping({field.name: object()})


def test_rules_tell_what_they_can_do() -> None:
    assert Rules().empty
    assert Rules(group_by="name").empty
    assert not Rules(max_age="1d").empty
    assert not Rules(by_kind={"routine": Rules(keep_last=1)}).empty
    assert Rules(keep_last=5, group_by="name").only_last == 5
    assert Rules(keep_last=5, keep_every=2).only_last is None
    assert Rules(keep_last="unlimited").only_last is None
    assert Rules().only_last is None
