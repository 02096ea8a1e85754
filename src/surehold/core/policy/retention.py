"""Plan of a prune: a decision with its reason for every checkpoint.

Order is that of the headers, newest first, and never that of the clock; only rules about time
look at `saved_at`. A clock that was set back can therefore keep too much, but it cannot make the
newest look old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple, TypeVar

from surehold.core.policy.rules import Age, Count, Rules
from surehold.core.records import Header, read_status
from surehold.errors import UsageError

Key = tuple[str, int]
"""A record, by its run_id and seq."""

_T = TypeVar("_T")

_PERIOD_OF: dict[str, Callable[[datetime], Hashable]] = {
    # The fold tells apart the two like-named hours of a night on which clocks go back.
    "hourly": lambda time: (time.date(), time.hour, time.fold),
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}


class Decision(NamedTuple):
    """Keep or drop a checkpoint, with the reason, such as ``last 1/3``."""

    header: Header
    keep: bool
    reasons: tuple[str, ...]


def plan_prune(
    headers: Iterable[Header],
    rules: Rules,
    now: datetime,
    *,
    pinned: AbstractSet[Key] = frozenset(),
    in_doubt: AbstractSet[Key] = frozenset(),
    released: AbstractSet[Key] = frozenset(),
    heads: AbstractSet[Key] = frozenset(),
    tz: tzinfo = UTC,
) -> list[Decision]:
    """Decide on every one of *headers*: checkpoints of whole runs, newest first.

    Whatever the rules, these stay: the newest of each run and scope or, counted by name, of each
    name and of each run that can be resumed (``newest``; see `newest_keys`), those the caller
    knows a resume or a branch to depend on (*heads*: ``head``), those *pinned* (``pin``) and
    *in_doubt* (``in doubt``), and, if there is a rule that looks at the time, those stamped later
    than *now* (``in the future``), which no such rule counts. What is past `max_age` or dropped
    by `delete_on_success` is not counted by the keep rules either. The calendar is that of *tz*.

    >>> from datetime import timedelta
    >>> now = datetime(2024, 5, 8, 12, tzinfo=UTC)
    >>> headers = [
    ...     Header(run_id="r", seq=n, id=f"c{n}", frame="key", saved_at=now - timedelta(days=9 - n))
    ...     for n in (3, 2, 1)
    ... ]
    >>> for header, keep, reasons in plan_prune(headers, Rules(keep_last=2), now):
    ...     print(header.id, keep, *reasons, sep=", ")
    c3, True, newest, last 1/2
    c2, True, last 2/2
    c1, False, no rule keeps it
    """
    if now.tzinfo is None:
        raise UsageError("now has no time zone", hint="give datetime.now(UTC)")
    now = now.astimezone(UTC)
    ordered = list(headers)
    named = {"head": heads, "pin": pinned, "in doubt": in_doubt}
    stay = _never_removed(ordered, rules.group_by, named)
    facts = _Facts(now, tz, stay, released, _statuses_of_runs(ordered))
    of_kind = {kind: _inherit(own, rules) for kind, own in rules.by_kind.items()}
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, header in enumerate(ordered):
        kind = header.kind if header.kind in of_kind else None
        groups[_group_of(header, rules.group_by), kind].append(index)

    decisions: dict[int, Decision] = {}
    for indices in groups.values():
        members = [ordered[index] for index in indices]
        kind = members[0].kind
        label = f"kind {kind}: " if kind in of_kind else ""
        decided = _decide(members, of_kind.get(kind, rules), facts, label)
        decisions.update(zip(indices, decided, strict=True))
    return [decisions[index] for index in range(len(ordered))]


def drop_beyond_last(
    newest_first: Sequence[_T], count: int, stay: Container[_T] = frozenset()
) -> list[_T]:
    """The items of a group that `plan_prune` removes by ``keep_last=count`` alone.

    Only the order counts. *stay* must hold all that is never removed.

    >>> drop_beyond_last([9, 8, 7, 6, 5], 2, stay={6})
    [7, 5]
    """
    return [one for one in newest_first[count:] if one not in stay]


@dataclass(frozen=True, slots=True)
class _Facts:
    now: datetime
    tz: tzinfo
    stay: dict[Key, list[str]]
    released: AbstractSet[Key]
    status_of_run: dict[str, str]


_Member = tuple[int, Header]
_Match = tuple[int, str]


def newest_keys(newest_first: Iterable[Header], group_by: str) -> Iterator[Key]:
    """The newest checkpoint of each run, or of each name, in each scope.

    Grouped by name, the newest checkpoint of each unfinished run counts too: the run can still
    be resumed.
    """
    ordered = list(newest_first)
    statuses = _statuses_of_runs(ordered) if group_by == "name" else {}
    seen: set[Hashable] = set()
    for header in ordered:
        group = _group_of(header, "run" if group_by == "all" else group_by)
        own = ("unfinished", header.run_id, header.scope)
        unfinished = statuses.get(header.run_id, "completed") != "completed"
        if group not in seen or (unfinished and own not in seen):
            yield header.run_id, header.seq
        seen |= {group, own}


def _never_removed(
    ordered: Sequence[Header], group_by: str, named: dict[str, AbstractSet[Key]]
) -> dict[Key, list[str]]:
    stay: dict[Key, list[str]] = defaultdict(list)
    for key in newest_keys(ordered, group_by):
        stay[key].append("newest")
    for reason, keys in named.items():
        for key in keys:
            stay[key].append(reason)
    return dict(stay)


def _statuses_of_runs(ordered: Sequence[Header]) -> dict[str, str]:
    """Return each run's status, from its newest checkpoint outside nested scopes."""
    statuses: dict[str, str] = {}
    for header in ordered:
        if header.scope == "":
            statuses.setdefault(header.run_id, read_status(header.status))
    return statuses


def _inherit(own: Rules, rules: Rules) -> Rules:
    return replace(
        own,
        max_age=own.max_age or rules.max_age,
        delete_on_success=own.delete_on_success or rules.delete_on_success,
    )


def _group_of(header: Header, group_by: str) -> Hashable:
    if group_by == "all":
        return ()
    if group_by == "name" and header.name:
        return "name", header.name, header.scope
    return "run", header.run_id, header.scope


def _decide(
    members: Sequence[Header], rules: Rules, facts: _Facts, label: str
) -> Iterator[Decision]:
    """The decisions on one group."""
    dropped = _dropped(members, rules, facts)
    counted = [member for member in enumerate(members) if member[0] not in dropped]
    matched: dict[int, list[str]] = defaultdict(list)
    for index, reason in _matches(counted, rules, facts):
        matched[index].append(label + reason)
    timed = rules.timed
    for index, header in enumerate(members):
        reasons = list(facts.stay.get((header.run_id, header.seq), ()))
        if timed and header.saved_at > facts.now:
            reasons.append("in the future")
        reasons += matched.get(index, ())
        if reasons:
            yield Decision(header, True, tuple(reasons))
        else:
            yield Decision(header, False, (label + dropped.get(index, "no rule keeps it"),))


def _dropped(members: Sequence[Header], rules: Rules, facts: _Facts) -> dict[int, str]:
    """Those that go whatever the keep rules say."""
    dropped: dict[int, str] = {}
    if rules.max_age:
        cutoff = Age.of(rules.max_age).before(facts.now)
        for index, header in enumerate(members):
            if header.saved_at <= cutoff:
                dropped[index] = f"older than {rules.max_age}"
    if rules.delete_on_success:
        for index, header in enumerate(members):
            if facts.status_of_run.get(header.run_id) == "completed":
                dropped[index] = "run completed"
    return dropped


def _matches(members: Sequence[_Member], rules: Rules, facts: _Facts) -> Iterator[_Match]:
    """Return the members that keep rules match, with reasons; all without such rules."""
    if not rules.keeps:
        reason = f"within {rules.max_age}" if rules.max_age else "no rule removes it"
        yield from ((index, reason) for index, _ in members)
        return
    yield from _by_order(members, rules)
    if rules.timed and (past := [one for one in members if one[1].saved_at <= facts.now]):
        yield from _by_calendar(past, rules, facts.tz)
        yield from _by_age(past, rules, facts.tz)
    yield from _by_what_it_is(members, rules, facts)


def _by_order(members: Sequence[_Member], rules: Rules) -> Iterator[_Match]:
    if rules.keep_last is not None:
        count = len(members) if rules.keep_last == "unlimited" else rules.keep_last
        for place, (index, _) in enumerate(members[:count], 1):
            yield index, f"last {place}/{rules.keep_last}"
    if rules.keep_every is not None:
        stretches = ((h.run_id, h.scope, -(-h.step // rules.keep_every)) for _, h in members)
        for _, at in _firsts(stretches):
            yield members[at][0], f"every {rules.keep_every} steps"


def _by_calendar(past: Sequence[_Member], rules: Rules, tz: tzinfo) -> Iterator[_Match]:
    for name, period_of in _PERIOD_OF.items():
        count: Count | None = getattr(rules, f"keep_{name}")
        if count is None:
            continue
        place, at = 0, -1
        for place, at in _firsts(period_of(h.saved_at.astimezone(tz)) for _, h in past):
            yield past[at][0], f"{name} {place}/{count}"
            if place == count:
                break
        else:
            if at != len(past) - 1:
                yield past[-1][0], f"oldest {name} {place + 1}/{count}"


def _by_age(past: Sequence[_Member], rules: Rules, tz: tzinfo) -> Iterator[_Match]:
    newest = past[0][1].saved_at
    if rules.keep_within:
        cutoff = Age.of(rules.keep_within).before(newest)
        yield from (
            (index, f"within {rules.keep_within}") for index, h in past if h.saved_at > cutoff
        )
    for name, period_of in _PERIOD_OF.items():
        age: Age | None = getattr(rules, f"keep_within_{name}")
        if age is None:
            continue
        cutoff = age.before(newest)
        young = [one for one in past if one[1].saved_at > cutoff]
        at = -1
        for _, at in _firsts(period_of(h.saved_at.astimezone(tz)) for _, h in young):
            yield young[at][0], f"{name} within {age}"
        if 0 <= at < len(young) - 1 and young[-1] is past[-1]:
            yield past[-1][0], f"oldest {name} within {age}"


def _by_what_it_is(members: Sequence[_Member], rules: Rules, facts: _Facts) -> Iterator[_Match]:
    wanted = [(tags, {tag.strip() for tag in tags.split(",")} - {""}) for tags in rules.keep_tags]
    young = Age.of(rules.keep_failed).before(facts.now) if rules.keep_failed else None
    for index, header in members:
        status = read_status(header.status)
        for text, tags in wanted:
            if tags.issubset(header.tags) if tags else not header.tags:
                yield index, f"tag {text}" if tags else "untagged"
        if status in rules.keep_status:
            yield index, f"status {status}"
        failed = "failed" in (status, facts.status_of_run.get(header.run_id))
        if young is not None and failed and header.saved_at > young:
            yield index, f"failed within {rules.keep_failed}"
        if rules.keep_until_released and (header.run_id, header.seq) not in facts.released:
            yield index, "until released"


def _firsts(keys: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """The first of each different key: how many there are so far, and where it stands."""
    seen: set[Hashable] = set()
    for at, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            yield len(seen), at
