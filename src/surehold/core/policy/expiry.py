"""The rule by which whole runs expire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from surehold.core.policy.rules import Age
from surehold.core.records import STATUSES, read_status
from surehold.errors import UsageError

EXPIRABLE = (
    *(status for status in STATUSES if status not in ("running", "waiting")),
    *("queued", "dead", "stale", "saved"),
)
"""The statuses, as people are told them, of runs that may expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Runs that are to be removed whole.

    *older* is the time since the last save. A run that runs or waits never expires.

    >>> Expiry(older="30d", status="failed").status
    ('failed',)
    """

    older: Age | timedelta | str
    status: Iterable[str] = ("completed",)
    name: str | None = None
    """Only runs of this name."""
    keep_last: int = 0
    """The newest so many of each name and status stay."""

    def __post_init__(self) -> None:
        given = (self.status,) if isinstance(self.status, str) else tuple(self.status)
        statuses = tuple(read_status(status) for status in given)
        for status in statuses:
            if status not in EXPIRABLE:
                raise UsageError(
                    f"runs with the status {status!r} do not expire",
                    hint=f"choose from {', '.join(EXPIRABLE)}",
                )
        if type(self.keep_last) is not int or self.keep_last < 0:
            raise UsageError(f"keep_last is {self.keep_last!r}", hint="give a number from 0")
        object.__setattr__(self, "status", statuses)
        object.__setattr__(self, "older", Age.of(self.older))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Expiry:
        """Read what `surehold.toml` says under ``[expire]``."""
        given = {key.replace("-", "_"): value for key, value in values.items()}
        known = {field.name for field in fields(cls)}
        if unknown := sorted(given.keys() - known):
            hint = f"there are {', '.join(sorted(known))}"
            raise UsageError(f"there is no {unknown[0]!r} in a rule of expiry", hint=hint)
        if "older" not in given:
            raise UsageError("a rule of expiry needs an age", hint="older = '30d'")
        return cls(**given)
