"""What holds of any journals under any rules."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from surehold.core.policy.retention import Decision, drop_beyond_last, plan_prune
from surehold.core.policy.rules import Age, Rules
from surehold.core.records.record import Header

NOW = datetime(2024, 5, 15, 12, 0, tzinfo=UTC)

AGES = st.sampled_from(["1h", "6h", "1d", "3d", "7d", "1m", "1y", timedelta(minutes=90)])
COUNTS = st.one_of(st.integers(1, 6), st.just("unlimited"))
PERIODS = ("hourly", "daily", "weekly", "monthly", "yearly")
KEEP: dict[str, st.SearchStrategy[Any]] = {
    "keep_last": COUNTS,
    **{f"keep_{period}": COUNTS for period in PERIODS},
    "keep_within": AGES,
    **{f"keep_within_{period}": AGES for period in PERIODS},
    "keep_every": st.integers(1, 6),
    "keep_tags": st.lists(st.sampled_from(["a", "b", "a,b", ""]), max_size=2),
    "keep_status": st.lists(st.sampled_from(["failed", "completed"]), max_size=2),
    "keep_failed": AGES,
    "keep_until_released": st.just(True),
}
OTHER: dict[str, st.SearchStrategy[Any]] = {
    "max_age": AGES,
    "delete_on_success": st.booleans(),
}
KIND_RULES = st.fixed_dictionaries({}, optional=KEEP | OTHER).map(lambda given: Rules(**given))
COMMON: dict[str, st.SearchStrategy[Any]] = {
    "by_kind": st.dictionaries(st.sampled_from(["routine", "recovery"]), KIND_RULES),
    "group_by": st.sampled_from(["run", "name", "all"]),
}
RULES = st.fixed_dictionaries({}, optional=KEEP | OTHER | COMMON).map(lambda given: Rules(**given))


@st.composite
def journals(draw: st.DrawFn) -> list[Header]:
    """A few interleaved runs; the clock mostly goes on, and at times jumps either way."""
    moment = NOW - timedelta(days=draw(st.integers(0, 400)))
    seqs: dict[str, int] = defaultdict(int)
    made: list[Header] = []
    for n in range(draw(st.integers(0, 24))):
        minutes = draw(st.sampled_from([0, 1, 30, 60, 600, 1440, 10_000, 100_000, -90, -50_000]))
        moment += timedelta(minutes=minutes)
        run_id = draw(st.sampled_from("ab"))
        seqs[run_id] += draw(st.integers(1, 2))
        made.append(
            Header(
                run_id=run_id,
                name=draw(st.sampled_from(["", "agent"])),
                scope=draw(st.sampled_from(["", "", "inner"])),
                seq=seqs[run_id],
                id=f"c{n}",
                frame="key",
                saved_at=moment,
                step=seqs[run_id],
                kind=draw(st.sampled_from(["routine", "recovery", "manual"])),
                status=draw(st.sampled_from(["running", "failed", "completed"])),
                tags=tuple(draw(st.sets(st.sampled_from("ab")))),
            )
        )
    return made[::-1]


def keys(headers: list[Header]) -> set[tuple[str, int]]:
    return {(header.run_id, header.seq) for header in headers}


def survivors(plan: list[Decision]) -> list[Header]:
    return [one.header for one in plan if one.keep]


@given(journals(), RULES)
def test_every_checkpoint_gets_one_decision_with_a_reason(
    headers: list[Header], rules: Rules
) -> None:
    plan = plan_prune(headers, rules, NOW)
    assert [one.header for one in plan] == headers
    assert all(one.reasons and all(one.reasons) for one in plan)


@given(journals(), RULES)
def test_the_newest_of_every_run_or_name_and_scope_is_kept_whatever_the_rules(
    headers: list[Header], rules: Rules
) -> None:
    by_name = rules.group_by == "name"
    newest = {((by_name and h.name) or h.run_id, h.scope): h for h in reversed(headers)}
    plan = plan_prune(headers, rules, NOW)
    assert keys(list(newest.values())) <= keys(survivors(plan))


@given(journals(), RULES, st.data())
def test_what_is_pinned_in_doubt_or_a_head_is_kept_whatever_the_rules(
    headers: list[Header], rules: Rules, data: st.DataObject
) -> None:
    some = st.sets(st.sampled_from(sorted(keys(headers)))) if headers else st.just(set())
    pinned, in_doubt, heads = data.draw(some), data.draw(some), data.draw(some)
    plan = plan_prune(headers, rules, NOW, pinned=pinned, in_doubt=in_doubt, heads=heads)
    assert pinned | in_doubt | heads <= keys(survivors(plan))


@given(journals())
def test_an_empty_policy_keeps_everything(headers: list[Header]) -> None:
    assert survivors(plan_prune(headers, Rules(), NOW)) == headers


@given(journals(), RULES, st.fixed_dictionaries({}, optional=KEEP))
def test_one_more_keep_rule_never_removes_more(
    headers: list[Header], rules: Rules, more: dict[str, Any]
) -> None:
    if not rules.keeps:
        rules = dataclasses.replace(rules, keep_last=1)
    added = {name: value for name, value in more.items() if not getattr(rules, name)}
    before = survivors(plan_prune(headers, rules, NOW))
    after = survivors(plan_prune(headers, dataclasses.replace(rules, **added), NOW))
    assert keys(before) <= keys(after)


@given(journals(), RULES, st.data())
def test_what_one_plan_keeps_the_next_keeps_too(
    headers: list[Header], rules: Rules, data: st.DataObject
) -> None:
    some = st.sets(st.sampled_from(sorted(keys(headers)))) if headers else st.just(set())
    pinned, released = data.draw(some), data.draw(some)
    left = survivors(plan_prune(headers, rules, NOW, pinned=pinned, released=released))
    again = plan_prune(left, rules, NOW, pinned=pinned, released=released)
    assert survivors(again) == left


@given(journals(), AGES)
def test_nothing_but_what_is_never_removed_outlives_max_age(
    headers: list[Header], age: str | timedelta
) -> None:
    cutoff = Age.of(age).before(NOW)
    for one in plan_prune(headers, Rules(keep_last="unlimited", max_age=age), NOW):
        assert one.keep == ("newest" in one.reasons or one.header.saved_at > cutoff)


@given(journals(), st.integers(1, 5), st.data())
def test_the_short_cut_for_keep_last_agrees_with_the_plan(
    headers: list[Header], count: int, data: st.DataObject
) -> None:
    one_run = [header for header in headers if (header.run_id, header.scope) == ("a", "")]
    seqs = [header.seq for header in one_run]
    pinned = data.draw(st.sets(st.sampled_from(seqs)) if seqs else st.just(set()))
    plan = plan_prune(one_run, Rules(keep_last=count), NOW, pinned={("a", seq) for seq in pinned})
    gone = [one.header.seq for one in plan if not one.keep]
    assert drop_beyond_last(seqs, count, stay=pinned) == gone
