"""The rules of retention as a value; `core.policy.retention` applies them.

They are restic's, translated: each `keep_*` rule saves what it matches, one match is enough, and
what no rule matches goes. Rules that keep nothing in particular keep all, so that an empty policy
removes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import MINYEAR, UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal

from surehold.core.records import STATUSES, read_status
from surehold.errors import UsageError

Count = int | Literal["unlimited"]

PERIODS = ("hourly", "daily", "weekly", "monthly", "yearly")

_CALENDAR = tuple(f"keep_{period}" for period in PERIODS)
_COUNTS = ("keep_last", *_CALENDAR)
_AGES = ("keep_within", *(f"keep_within_{period}" for period in PERIODS), "keep_failed", "max_age")
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_AGE_TEXT = r"(?=.)" + "".join(rf"(?:([0-9]{{1,6}}){unit})?" for unit in "ymdh")


@dataclass(frozen=True, slots=True)
class Age:
    """A length of time in which years and months are those of the calendar.

    >>> str(Age.of("1m12h").before(datetime(2024, 3, 31, 12, tzinfo=UTC)))
    '2024-02-29 00:00:00+00:00'
    """

    months: int
    rest: timedelta
    text: str = field(compare=False)

    @classmethod
    def of(cls, value: Age | timedelta | str) -> Age:
        """Read a timedelta, or text such as ``2y5m7d3h``: years, months, days, hours."""
        if isinstance(value, Age):
            return value
        months, rest, text = 0, timedelta(), str(value)
        if isinstance(value, timedelta):
            rest, text = value, _spell(value)
        elif match := re.fullmatch(_AGE_TEXT, text):
            years, months, days, hours = (int(number or 0) for number in match.groups())
            months, rest = 12 * years + months, timedelta(days=days, hours=hours)
        if not months and rest <= timedelta():
            raise UsageError(
                f"{value if isinstance(value, timedelta) else repr(value)} is not a positive age",
                hint="write years, months, days and hours, as in 2y5m7d3h; a week is 7d",
                value=value,
            )
        return cls(months, rest, text)

    def before(self, moment: datetime) -> datetime:
        """The moment this long before; what a month lacks in days is cut off."""
        try:
            return _months_before(moment, self.months) - self.rest
        except OverflowError:
            return _BEGINNING

    def __str__(self) -> str:
        return self.text


def _months_before(moment: datetime, months: int) -> datetime:
    if not months:
        return moment
    year, month = divmod(12 * moment.year + moment.month - 1 - months, 12)
    if year < MINYEAR:
        raise OverflowError("before the calendar begins")
    first = moment.replace(year=year, month=month + 1, day=1)
    days = ((first + timedelta(days=31)).replace(day=1) - timedelta(days=1)).day
    return first.replace(day=min(moment.day, days))


def _spell(length: timedelta) -> str:
    hours, rest = divmod(length, timedelta(hours=1))
    if rest:
        return str(length)
    days, hours = divmod(hours, 24)
    return (f"{days}d" if days else "") + (f"{hours}h" if hours else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The checkpoints that stay.

    A count is a number from 1, or ``"unlimited"``; an age is a timedelta or text such as
    ``2y5m7d3h``.

    `plan_prune` says what is never removed, whatever the rules.

    >>> rules = Rules(keep_last=20, keep_within="24h", keep_daily=7, keep_tags=["keep"])
    """

    keep_last: Count | None = None
    """The newest so many."""
    keep_hourly: Count | None = None
    """Of the last so many hours in which there are any, the newest of each. Hours, days, weeks
    (from Monday), months and years are those of the calendar; while there are too few of them,
    the oldest checkpoint is kept as well."""
    keep_daily: Count | None = None
    keep_weekly: Count | None = None
    keep_monthly: Count | None = None
    keep_yearly: Count | None = None
    keep_within: Age | timedelta | str | None = None
    """All that are younger than this, seen from the newest of the group, not from now: what is
    dormant does not wither."""
    keep_within_hourly: Age | timedelta | str | None = None
    """The newest of every hour, as far back as this from the newest of the group."""
    keep_within_daily: Age | timedelta | str | None = None
    keep_within_weekly: Age | timedelta | str | None = None
    keep_within_monthly: Age | timedelta | str | None = None
    keep_within_yearly: Age | timedelta | str | None = None
    keep_every: int | None = None
    """One of every so many steps of a run: with 10, steps 10, 20, 30 and so on, or the last one
    saved before each."""
    keep_tags: Sequence[str] = ()
    """Those with one of these tags; ``"a,b"`` asks for both, ``""`` for none at all."""
    keep_status: Sequence[str] = ()
    """Checkpoints with one of these statuses."""
    keep_failed: Age | timedelta | str | None = None
    """Those that are failed, or whose run is, up to this age, seen from now."""
    keep_until_released: bool = False
    """Checkpoints that have not been released."""
    max_age: Age | timedelta | str | None = None
    """Checkpoints older than this are dropped, whatever the keep rules say."""
    delete_on_success: bool = False
    """Once the run is completed only the newest of each of its scopes stays, whatever the keep
    rules say."""
    by_kind: Mapping[str, Rules] = field(default_factory=dict, hash=False)
    """Checkpoints of these kinds are counted by themselves, and these rules take the place of
    the keep rules above; `max_age` and `delete_on_success` above hold for them too."""
    group_by: Literal["run", "name", "all"] = "run"
    """The unit of counting. Runs without a name are never counted together by name."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Rules:
        """Rules as a file or a command line gives them; None means not set.

        >>> Rules.from_mapping({"keep-last": "3", "by_kind": {"recovery": {"max_age": "7d"}}})
        ... # doctest: +ELLIPSIS
        Rules(keep_last=3, ...)
        """
        if not isinstance(mapping, Mapping):
            raise UsageError(f"retention is {mapping!r}", hint="give names of rules with values")
        given: dict[str, Any] = {}
        for written, value in mapping.items():
            name = str(written).replace("-", "_")
            _check_choice("retention rule", name, tuple(_CHECKS))
            if name in given:
                raise UsageError(f"{name} is given twice", name=name)
            if value is not None:
                given[name] = _from_text(name, value)
        return cls(**given)

    @classmethod
    def by_kind_default(cls) -> Rules:
        """Rules for agents that must survive their own mistakes.

        The last three routine checkpoints stay, recovery ones for seven days (of more than a
        hundred, the last of each hour), pre_operation ones until they are released, and all of any
        other kind.
        """
        return cls(
            by_kind={
                "routine": cls(keep_last=3),
                "recovery": cls(keep_last=100, keep_within_hourly="7d", max_age="7d"),
                "pre_operation": cls(keep_until_released=True),
            }
        )

    @property
    def keeps(self) -> bool:
        """True if any keep rule is set; unmatched checkpoints are then dropped."""
        return any(getattr(self, name) for name in _CHECKS if name.startswith("keep_"))

    @property
    def timed(self) -> bool:
        """True if there is a rule that looks at the time."""
        return any(getattr(self, name) for name in (*_CALENDAR, *_AGES))

    @property
    def empty(self) -> bool:
        """True if nothing is ever removed."""
        return self == Rules(group_by=self.group_by)

    @property
    def only_last(self) -> int | None:
        """The count, if `keep_last` is the only rule; `drop_beyond_last` then suffices."""
        if not isinstance(self.keep_last, int):
            return None
        plain = self == Rules(keep_last=self.keep_last, group_by=self.group_by)
        return self.keep_last if plain else None


def _from_text(name: str, value: Any) -> Any:
    counted = name in _COUNTS or name == "keep_every"
    if counted and isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    if name == "by_kind" and isinstance(value, Mapping):
        return {kind: _rules_of_kind(kind, rules) for kind, rules in value.items()}
    return value


def _rules_of_kind(kind: str, rules: Any) -> Rules:
    try:
        return rules if isinstance(rules, Rules) else Rules.from_mapping(rules)
    except UsageError as error:
        message = f"by_kind {kind!r}: {error.message}"
        raise UsageError(message, hint=error.hint, **error.facts) from None


def _check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value in choices:
        return
    nearest = get_close_matches(str(value), choices, n=1)
    raise UsageError(
        f"there is no {what} {value!r}",
        hint=f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(choices)}",
        value=value,
    )


def _check_count(name: str, value: object) -> object:
    number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    unlimited = value == "unlimited" and name in _COUNTS
    if value is None or number or unlimited:
        return value
    words = " or 'unlimited'" if name in _COUNTS else ""
    raise UsageError(
        f"{name} is {value!r}", hint=f"give a number from 1{words}, or leave it out", name=name
    )


def _check_age(name: str, value: Any) -> Age | None:
    try:
        return None if value is None else Age.of(value)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint, name=name) from None


def _check_texts(name: str, value: Any) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(word, str) for word in words):
        raise UsageError(f"{name} is {value!r}", hint="give a list of words", name=name)
    return words


def _check_statuses(name: str, value: Any) -> tuple[str, ...]:
    statuses = tuple(read_status(status) for status in _check_texts(name, value))
    for status in statuses:
        _check_choice("status", status, STATUSES)
    return statuses


def _check_flag(name: str, value: object) -> object:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}", hint="give true or false", name=name)
    return value


def _check_kinds(name: str, value: Any) -> dict[str, Rules]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is {value!r}", hint="give rules for each kind", name=name)
    for kind, rules in value.items():
        if not isinstance(kind, str) or not isinstance(rules, Rules):
            raise UsageError(
                f"{name} {kind!r} is {rules!r}", hint="give Rules to the name of a kind", name=name
            )
        if rules.by_kind or rules.group_by != "run":
            raise UsageError(
                f"{name} {kind!r} has by_kind or group_by of its own",
                hint="give them once, for all kinds",
                name=name,
            )
    return dict(value)


def _check_group_by(name: str, value: object) -> object:
    _check_choice(name, value, ("run", "name", "all"))
    return value


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys((*_COUNTS, "keep_every"), _check_count),
    **dict.fromkeys(_AGES, _check_age),
    "keep_tags": _check_texts,
    "keep_status": _check_statuses,
    **dict.fromkeys(("keep_until_released", "delete_on_success"), _check_flag),
    "by_kind": _check_kinds,
    "group_by": _check_group_by,
}
