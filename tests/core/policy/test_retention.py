from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from surehold.core.policy.retention import Decision, plan_prune
from surehold.core.policy.rules import Age, Rules
from surehold.core.records.record import Header
from surehold.errors import UsageError

NOW = datetime(2024, 5, 15, 12, 0, tzinfo=UTC)  # a Wednesday


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def journal(*stamps: str, **fields: Any) -> list[Header]:
    """Checkpoints of one run, given oldest first as time is read, newest first as asked for."""
    made = [
        Header(run_id="r", seq=n, id=stamp, frame="key", saved_at=at(stamp), step=n, **fields)
        for n, stamp in enumerate(stamps, 1)
    ]
    return made[::-1]


def checkpoint(seq: int, *, run_id: str = "r", age: str = "1h", **fields: Any) -> Header:
    moment = Age.of(age).before(NOW)
    fields = {"step": seq, **fields}
    return Header(run_id=run_id, seq=seq, id=f"c{seq}", frame="key", saved_at=moment, **fields)


def reasons(plan: list[Decision]) -> dict[str, tuple[str, ...]]:
    """Of those that are kept: why, the protection of the newest left out where more is said."""
    return {
        one.header.id: tuple(why for why in one.reasons if why != "newest") or one.reasons
        for one in plan
        if one.keep
    }


def kept(plan: list[Decision]) -> list[int]:
    return [one.header.seq for one in plan if one.keep]


def why(plan: list[Decision]) -> dict[int, str]:
    return {one.header.seq: ", ".join(one.reasons) for one in plan}


def test_an_empty_policy_removes_nothing() -> None:
    plan = plan_prune([checkpoint(seq) for seq in (3, 2, 1)], Rules(), NOW)
    assert why(plan) == {
        3: "newest, no rule removes it",
        2: "no rule removes it",
        1: "no rule removes it",
    }


def test_the_plan_has_every_header_in_the_order_given() -> None:
    headers = [
        checkpoint(9, run_id="a"),
        checkpoint(7, run_id="b", kind="recovery"),
        checkpoint(8, run_id="a", scope="inner"),
        checkpoint(6, run_id="b"),
        checkpoint(5, run_id="a", kind="recovery"),
    ]
    plan = plan_prune(iter(headers), Rules.by_kind_default(), NOW)
    assert [one.header for one in plan] == headers


def test_keep_last_keeps_the_newest_by_order_not_by_clock() -> None:
    headers = journal("2024-05-15T11:00", "2024-05-15T11:30", "2024-05-15T10:40")  # set back
    plan = plan_prune(headers, Rules(keep_last=1), NOW)
    assert reasons(plan) == {"2024-05-15T10:40": ("last 1/1",)}
    assert plan[1].reasons == ("no rule keeps it",)


HOURS = [
    "2024-05-13T09:10",
    "2024-05-13T09:50",
    "2024-05-13T10:00",
    "2024-05-14T23:59",
    "2024-05-15T00:00",
    "2024-05-15T00:59",
]
DAYS = [
    "2023-12-30T12:00",  # a Saturday
    "2023-12-31T12:00",  # a Sunday, the end of a week
    "2024-01-01T00:00",  # a Monday
    "2024-01-01T23:59",
    "2024-01-31T10:00",
    "2024-02-29T10:00",
    "2024-02-29T20:00",
]


@pytest.mark.parametrize(
    ("rules", "stamps", "expected"),
    [
        (
            Rules(keep_last="unlimited"),
            HOURS[:2],
            {HOURS[1]: "last 1/unlimited", HOURS[0]: "last 2/unlimited"},
        ),
        (
            Rules(keep_hourly=3),
            HOURS,
            {HOURS[5]: "hourly 1/3", HOURS[3]: "hourly 2/3", HOURS[2]: "hourly 3/3"},
        ),
        (Rules(keep_daily=2), HOURS, {HOURS[5]: "daily 1/2", HOURS[3]: "daily 2/2"}),
        (
            Rules(keep_daily=4),
            HOURS,
            {
                HOURS[5]: "daily 1/4",
                HOURS[3]: "daily 2/4",
                HOURS[2]: "daily 3/4",
                HOURS[0]: "oldest daily 4/4",
            },
        ),
        (Rules(keep_weekly=1), HOURS, {HOURS[5]: "weekly 1/1"}),
        (
            Rules(keep_weekly=4),
            DAYS,
            {
                DAYS[6]: "weekly 1/4",
                DAYS[4]: "weekly 2/4",
                DAYS[3]: "weekly 3/4",
                DAYS[1]: "weekly 4/4",
            },
        ),
        (
            Rules(keep_monthly="unlimited"),
            DAYS,
            {
                DAYS[6]: "monthly 1/unlimited",
                DAYS[4]: "monthly 2/unlimited",
                DAYS[1]: "monthly 3/unlimited",
                DAYS[0]: "oldest monthly 4/unlimited",
            },
        ),
        (
            Rules(keep_yearly=3),
            DAYS,
            {DAYS[6]: "yearly 1/3", DAYS[1]: "yearly 2/3", DAYS[0]: "oldest yearly 3/3"},
        ),
        (
            Rules(keep_yearly=3),
            DAYS[1:],
            {DAYS[6]: "yearly 1/3", DAYS[1]: "yearly 2/3"},
        ),
        (
            Rules(keep_within="1d1h"),  # 23:59 the day before yesterday is not within
            HOURS,
            {stamp: "within 1d1h" for stamp in HOURS[3:]},
        ),
        (
            Rules(keep_within="1h"),  # exactly an hour older is not within
            ["2024-05-15T09:00", "2024-05-15T09:01", "2024-05-15T10:00"],
            {"2024-05-15T10:00": "within 1h", "2024-05-15T09:01": "within 1h"},
        ),
        (
            Rules(keep_within_hourly="2d"),
            HOURS,
            {stamp: "hourly within 2d" for stamp in (HOURS[1], HOURS[2], HOURS[3], HOURS[5])}
            | {HOURS[0]: "oldest hourly within 2d"},
        ),
        (
            Rules(keep_within_daily="1d12h"),  # the oldest is too old to be a filler
            HOURS,
            {HOURS[5]: "daily within 1d12h", HOURS[3]: "daily within 1d12h"},
        ),
        (
            Rules(keep_within_daily="1h"),
            HOURS,
            {HOURS[5]: "daily within 1h"},
        ),
        (
            Rules(keep_weekly=2),  # a week that begins in one year and ends in the next
            ["2018-12-30", "2018-12-31", "2019-01-06"],
            {"2019-01-06": "weekly 1/2", "2018-12-30": "weekly 2/2"},
        ),
        (
            Rules(keep_weekly=2),  # the nineteenth week of two years
            ["2022-05-11", "2023-05-10"],
            {"2023-05-10": "weekly 1/2", "2022-05-11": "weekly 2/2"},
        ),
        (
            Rules(keep_within_weekly="2m"),
            DAYS,
            {stamp: "weekly within 2m" for stamp in (DAYS[6], DAYS[4], DAYS[3], DAYS[1])}
            | {DAYS[0]: "oldest weekly within 2m"},
        ),
        (
            Rules(keep_within_monthly="1m"),
            DAYS,
            {DAYS[6]: "monthly within 1m", DAYS[4]: "monthly within 1m"},
        ),
        (
            Rules(keep_within_yearly="1y"),
            DAYS[1:],
            {DAYS[6]: "yearly within 1y", DAYS[1]: "yearly within 1y"},
        ),
        (
            Rules(keep_last=1, keep_daily=2),
            HOURS,
            {HOURS[5]: "last 1/1, daily 1/2", HOURS[3]: "daily 2/2"},
        ),
    ],
)
def test_time_rules_keep_what_the_calendar_says(
    rules: Rules, stamps: list[str], expected: dict[str, str]
) -> None:
    plan = plan_prune(journal(*stamps), rules, NOW)
    assert {key: ", ".join(said) for key, said in reasons(plan).items()} == expected


SUNDAYS = [
    *("2019-09-01", "2019-09-08", "2019-09-15", "2019-09-22", "2019-09-29", "2019-10-06"),
    *("2019-10-13", "2019-10-20", "2019-10-27", "2019-11-03", "2019-11-10", "2019-11-17"),
]


def test_days_without_a_checkpoint_do_not_count() -> None:
    plan = plan_prune(journal(*SUNDAYS), Rules(keep_daily=4), NOW)
    assert list(reasons(plan)) == SUNDAYS[:7:-1]


def test_spans_count_days_without_a_checkpoint() -> None:
    plan = plan_prune(journal(*SUNDAYS), Rules(keep_within_daily="14d"), NOW)
    assert list(reasons(plan)) == ["2019-11-17", "2019-11-10"]


def test_one_checkpoint_can_serve_several_rules() -> None:
    days = [
        (datetime(2014, 1, 1, 12, tzinfo=UTC) + timedelta(days=n)).isoformat(" ")[:16]
        for n in range(3652)  # up to 2023-12-31, a Sunday
    ]
    rules = Rules(keep_daily=7, keep_weekly=5, keep_monthly=12, keep_yearly=8)
    plan = plan_prune(journal(*days), rules, NOW)
    assert plan[0].header.id == "2023-12-31 12:00"
    assert plan[0].reasons == ("newest", "daily 1/7", "weekly 1/5", "monthly 1/12", "yearly 1/8")
    by_rule: dict[str, list[str]] = defaultdict(list)
    for header, said in reasons(plan).items():
        for reason in said:
            by_rule[reason.split()[0]].append(header[:10])
    assert by_rule["daily"] == [f"2023-12-{day}" for day in range(31, 24, -1)]
    assert by_rule["weekly"] == [
        "2023-12-31", "2023-12-24", "2023-12-17", "2023-12-10", "2023-12-03"
    ]  # fmt: skip
    assert by_rule["monthly"][:3] == ["2023-12-31", "2023-11-30", "2023-10-31"]
    assert by_rule["monthly"][-2:] == ["2023-02-28", "2023-01-31"]
    assert by_rule["yearly"] == [f"{year}-12-31" for year in range(2023, 2015, -1)]
    assert len(reasons(plan)) == 7 + 4 + 11 + 7


def test_a_dormant_run_does_not_wither() -> None:
    headers = journal("2020-01-01T00:00", "2020-01-01T12:00", "2020-01-01T13:00")
    assert kept(plan_prune(headers, Rules(keep_within="2h"), NOW)) == [3, 2]


def test_the_calendar_is_that_of_the_time_zone_handed_in() -> None:
    tokyo = timezone(timedelta(hours=9))
    headers = journal("2024-05-13T14:00", "2024-05-13T16:00", "2024-05-14T14:59")
    assert kept(plan_prune(headers, Rules(keep_daily=2), NOW)) == [3, 2]
    assert kept(plan_prune(headers, Rules(keep_daily=2), NOW, tz=tokyo)) == [3, 1]


class SummerTimeEnds(tzinfo):
    """Two hours ahead of UTC until 2024-10-27 01:00 UTC, one hour from then on."""

    END = datetime(2024, 10, 27, 1)

    def fromutc(self, moment: datetime) -> datetime:
        after = moment.replace(tzinfo=None) >= self.END
        again = after and moment.replace(tzinfo=None) < self.END + timedelta(hours=1)
        return (moment + timedelta(hours=1 if after else 2)).replace(fold=int(again))

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        switch = self.END + timedelta(hours=1)
        late = moment.replace(tzinfo=None) >= switch + timedelta(hours=1)
        doubled = not late and moment.replace(tzinfo=None) >= switch
        return timedelta(hours=1 if late or (doubled and moment.fold) else 2)

    def tzname(self, moment: datetime | None) -> str:
        return "summer" if self.dst(moment) else "winter"

    def dst(self, moment: datetime | None) -> timedelta:
        return self.utcoffset(moment) - timedelta(hours=1)


def test_the_hour_that_comes_twice_in_autumn_is_two_hours() -> None:
    headers = journal("2024-10-27T00:30", "2024-10-27T00:40", "2024-10-27T01:30")
    later = datetime(2024, 10, 28, tzinfo=UTC)
    plan = plan_prune(headers, Rules(keep_hourly=2), later, tz=SummerTimeEnds())
    assert kept(plan) == [3, 2]
    assert kept(plan_prune(headers, Rules(keep_daily=1), later, tz=SummerTimeEnds())) == [3]


def test_an_age_is_the_same_in_any_time_zone() -> None:
    headers = journal("2024-10-26T23:30", "2024-10-27T00:30", "2024-10-27T23:00")
    midnight = datetime(2024, 10, 28, tzinfo=UTC)
    for now in (midnight, midnight.astimezone(SummerTimeEnds())):
        assert kept(plan_prune(headers, Rules(max_age="24h"), now)) == [3, 2]


def test_a_clock_set_back_opens_no_period_twice() -> None:
    headers = journal("2024-05-13T10:00", "2024-05-14T10:00", "2024-05-13T11:00")
    plan = plan_prune(headers, Rules(keep_daily=2), NOW)
    assert why(plan) == {3: "newest, daily 1/2", 2: "daily 2/2", 1: "no rule keeps it"}


def test_keep_every_keeps_one_of_every_so_many_steps() -> None:
    every_step = [checkpoint(seq) for seq in range(25, -1, -1)]
    assert kept(plan_prune(every_step, Rules(keep_every=10), NOW)) == [25, 20, 10, 0]
    some = [checkpoint(seq) for seq in (24, 22, 18, 15, 9, 3)]
    assert kept(plan_prune(some, Rules(keep_every=10), NOW)) == [24, 18, 9]


def test_keep_every_counts_the_steps_of_each_run() -> None:
    rules = Rules(keep_every=10, group_by="all")
    headers = [
        *(checkpoint(n, run_id="b", step=n) for n in (12, 10)),
        *(checkpoint(n, run_id="a", step=n) for n in (12, 10)),
    ]
    assert kept(plan_prune(headers, rules, NOW)) == [12, 10, 12, 10]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["keep"], {4: "tag keep"}),
        (["a,b"], {3: "tag a,b"}),
        (["a, b", "keep"], {4: "tag keep", 3: "tag a, b"}),
        (["a"], {3: "tag a", 2: "tag a"}),
        ([""], {1: "untagged"}),
    ],
)
def test_tags_keep(wanted: list[str], expected: dict[int, str]) -> None:
    headers = [
        checkpoint(5, tags=("other",)),
        checkpoint(4, tags=("keep", "x")),
        checkpoint(3, tags=("b", "a")),
        checkpoint(2, tags=("a",)),
        checkpoint(1),
    ]
    plan = plan_prune(headers, Rules(keep_tags=wanted), NOW)
    assert why([one for one in plan if one.keep]) == {5: "newest"} | expected


def test_statuses_keep() -> None:
    headers = [
        checkpoint(4),
        checkpoint(3, status="interrupted"),
        checkpoint(2, status="error"),
        checkpoint(1),
    ]
    plan = plan_prune(headers, Rules(keep_status=["interrupted", "failed"]), NOW)
    assert why(plan) == {
        4: "newest",
        3: "status interrupted",
        2: "status failed",
        1: "no rule keeps it",
    }


def test_what_failed_is_kept_for_a_while_and_so_is_its_run() -> None:
    headers = [
        checkpoint(3, run_id="broken", status="failed"),
        checkpoint(2, run_id="broken", age="29d"),
        checkpoint(1, run_id="broken", age="30d"),
        checkpoint(8, run_id="mended"),
        checkpoint(7, run_id="mended", status="failed"),
        checkpoint(6, run_id="mended"),
    ]
    plan = plan_prune(headers, Rules(keep_failed="30d"), NOW)
    assert why(plan) == {
        3: "newest, failed within 30d",
        2: "failed within 30d",
        1: "no rule keeps it",
        8: "newest",
        7: "failed within 30d",
        6: "no rule keeps it",
    }


def test_max_age_is_a_ceiling_over_the_keep_rules() -> None:
    headers = [checkpoint(seq, age=f"{10 * (5 - seq)}d") for seq in (4, 3, 2, 1)]
    plan = plan_prune(headers, Rules(keep_last=4, max_age="20d"), NOW)
    assert why(plan) == {
        4: "newest, last 1/4",
        3: "older than 20d",
        2: "older than 20d",
        1: "older than 20d",
    }


def test_max_age_alone_keeps_what_is_younger() -> None:
    plan = plan_prune([checkpoint(2), checkpoint(1, age="8d")], Rules(max_age="7d"), NOW)
    assert why(plan) == {2: "newest, within 7d", 1: "older than 7d"}


def test_max_age_never_takes_what_is_never_removed() -> None:
    headers = [checkpoint(seq, age="1y") for seq in (5, 4, 3, 2, 1)]
    plan = plan_prune(
        headers,
        Rules(keep_last=5, max_age="1d"),
        NOW,
        heads={("r", 4)},
        pinned={("r", 3)},
        in_doubt={("r", 2), ("r", 3)},
    )
    assert why(plan) == {
        5: "newest",
        4: "head",
        3: "pin, in doubt",
        2: "in doubt",
        1: "older than 1d",
    }


def test_the_newest_of_each_run_and_scope_stays() -> None:
    headers = [
        checkpoint(6, scope="inner"),
        checkpoint(5),
        checkpoint(4, scope="inner"),
        checkpoint(3),
        checkpoint(2, run_id="other"),
        checkpoint(1, run_id="other"),
    ]
    plan = plan_prune(headers, Rules(keep_tags=["none has it"], group_by="all"), NOW)
    assert kept(plan) == [6, 5, 2]


def test_the_future_is_never_removed_by_a_rule_about_time_and_not_counted_by_it() -> None:
    headers = journal("2024-05-13T10:00", "2030-01-01T00:00", "2024-05-14T10:00")
    plan = plan_prune(headers, Rules(keep_daily=1), NOW)
    assert why(plan) == {3: "newest, daily 1/1", 2: "in the future", 1: "no rule keeps it"}


def test_only_rules_about_time_know_a_future() -> None:
    headers = journal("2024-05-13T10:00", "2030-01-01T00:00", "2024-05-14T10:00")
    assert kept(plan_prune(headers, Rules(keep_last=1), NOW)) == [3]


def test_spans_are_seen_from_the_newest_that_is_not_in_the_future() -> None:
    headers = journal("2024-05-13T10:00", "2024-05-14T09:30", "2024-05-14T10:00", "2030-01-01")
    plan = plan_prune(headers, Rules(keep_within="1h"), NOW)
    assert why(plan) == {
        4: "newest, in the future",
        3: "within 1h",
        2: "within 1h",
        1: "no rule keeps it",
    }


def test_after_success_only_the_final_one_stays() -> None:
    rules = Rules(keep_last=3, delete_on_success=True)
    running = [checkpoint(seq) for seq in (3, 2, 1)]
    assert kept(plan_prune(running, rules, NOW)) == [3, 2, 1]
    done = [checkpoint(4, status="completed", kind="final"), *running]
    plan = plan_prune(done, rules, NOW, pinned={("r", 2)})
    assert why(plan) == {4: "newest", 3: "run completed", 2: "pin", 1: "run completed"}


def test_success_is_that_of_the_run_not_of_a_nested_scope() -> None:
    rules = Rules(delete_on_success=True)
    nested = [checkpoint(3, scope="inner", status="completed"), checkpoint(2), checkpoint(1)]
    assert kept(plan_prune(nested, rules, NOW)) == [3, 2, 1]
    whole = [
        checkpoint(4, status="completed"),
        checkpoint(3, scope="inner", status="completed"),
        checkpoint(2, scope="inner"),
        checkpoint(1),
    ]
    assert kept(plan_prune(whole, rules, NOW)) == [4, 3]


def test_success_of_one_run_leaves_the_others_of_its_name() -> None:
    rules = Rules(delete_on_success=True, group_by="name")
    headers = [
        checkpoint(2, run_id="b", name="agent", status="completed"),
        checkpoint(1, run_id="b", name="agent"),
        checkpoint(2, run_id="a", name="agent"),
        checkpoint(1, run_id="a", name="agent"),
    ]
    assert [one.keep for one in plan_prune(headers, rules, NOW)] == [True, False, True, True]


def test_kinds_are_counted_by_themselves() -> None:
    headers = [
        checkpoint(10),
        checkpoint(9, kind="recovery", age="2d"),
        checkpoint(8),
        checkpoint(7, kind="pre_operation", age="2y"),
        checkpoint(6, age="3d"),
        checkpoint(5, kind="pre_operation", age="3y"),
        checkpoint(4, age="3y"),
        checkpoint(3, kind="recovery", age="7d"),
        checkpoint(2, kind="session_start", age="9y"),
    ]
    plan = plan_prune(headers, Rules.by_kind_default(), NOW, released={("r", 5)})
    assert why(plan) == {
        10: "newest, kind routine: last 1/3",
        9: "kind recovery: last 1/100, kind recovery: hourly within 7d",
        8: "kind routine: last 2/3",
        7: "kind pre_operation: until released",
        6: "kind routine: last 3/3",
        5: "kind pre_operation: no rule keeps it",
        4: "kind routine: no rule keeps it",
        3: "kind recovery: older than 7d",
        2: "no rule removes it",
    }


def test_a_kind_without_rules_of_its_own_falls_under_the_common_ones() -> None:
    rules = Rules(keep_last=1, by_kind={"manual": Rules()})
    headers = [checkpoint(4), checkpoint(3, kind="manual"), checkpoint(2, kind="manual")]
    assert why(plan_prune([*headers, checkpoint(1)], rules, NOW)) == {
        4: "newest, last 1/1",
        3: "kind manual: no rule removes it",
        2: "kind manual: no rule removes it",
        1: "no rule keeps it",
    }


def test_a_common_ceiling_holds_for_every_kind_that_has_none() -> None:
    rules = Rules(
        max_age="30d",
        by_kind={"manual": Rules(keep_last=9), "recovery": Rules(max_age="90d")},
    )
    headers = [
        checkpoint(4),
        checkpoint(3, kind="manual", age="31d"),
        checkpoint(2, kind="recovery", age="31d"),
        checkpoint(1, age="31d"),
    ]
    assert why(plan_prune(headers, rules, NOW)) == {
        4: "newest, within 30d",
        3: "kind manual: older than 30d",
        2: "kind recovery: within 90d",
        1: "older than 30d",
    }


GROUPED = [
    checkpoint(2, run_id="b", name="agent"),
    checkpoint(1, run_id="b", name="agent"),
    checkpoint(5, run_id="a", name="agent"),
    checkpoint(4, run_id="a", name="agent"),
    checkpoint(3, run_id="a", name="agent"),
    checkpoint(2, run_id="x"),
    checkpoint(1, run_id="x"),
    checkpoint(2, run_id="y"),
    checkpoint(1, run_id="y"),
]


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ("run", "b2 b1 a5 a4 x2 x1 y2 y1"),
        ("name", "b2 b1 a5 x2 x1 y2 y1"),  # run a is not completed
        ("all", "b2 b1 a5 x2 y2"),
    ],
)
def test_what_is_counted_together(group_by: Any, expected: str) -> None:
    plan = plan_prune(GROUPED, Rules(keep_last=2, group_by=group_by), NOW)
    assert [f"{h.run_id}{h.seq}" for h, keep, _ in plan if keep] == expected.split()


def test_a_nested_scope_does_not_push_out_the_checkpoints_of_its_run() -> None:
    headers = [
        checkpoint(6, scope="inner"),
        checkpoint(5, scope="inner"),
        checkpoint(4, scope="inner"),
        checkpoint(3),
        checkpoint(2),
        checkpoint(1),
    ]
    assert kept(plan_prune(headers, Rules(keep_last=2), NOW)) == [6, 5, 3, 2]


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(UsageError, match="no time zone"):
        plan_prune([], Rules(), datetime(2024, 1, 1))
