"""Automatic resume: a run that failed goes on by itself, a few times, later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.errors import HoldfastError, StepError, StorageError, UsageError
from holdfast.runtime.resume import Saved

__all__ = ["Attempt", "Backoff", "may_help"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failed run is resumed by itself, and after how many seconds each time.

    >>> [Backoff(resumes=4, first=1.0, longest=5.0).wait(number) for number in range(5)]
    [1.0, 2.0, 4.0, 5.0, None]
    """

    resumes: int = 3
    first: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.resumes < 0 or self.first < 0 or self.factor < 1 or self.longest < 0:
            raise UsageError(
                f"{self!r} is no backoff", hint="counts and seconds from 0, a factor from 1"
            )

    def wait(self, number: int) -> float | None:
        """How long to wait before resume *number*, counted from 0; None for no more of them."""
        if number >= self.resumes:
            return None
        return float(min(self.longest, self.first * self.factor**number))


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that failed and was resumed."""

    error: str
    round: int
    """Rounds completed by then, none of which is repeated."""
    waited: float
    """Seconds before it was resumed."""
    saved: Saved
    """Time, tokens and dollars that starting over would have cost again."""

    def __str__(self) -> str:
        return (
            f"failed after round {self.round} ({self.error}); resumed after {self.waited:g} s,"
            f" saving {self.saved.tokens:,} tokens, ${self.saved.dollars:.4f}"
        )


def may_help(error: HoldfastError) -> bool:
    """Whether trying again may help: not where the program or its data are wrong."""
    cause = error.__cause__ if isinstance(error, StepError) else error
    if isinstance(cause, StorageError):
        return cause.retryable
    return isinstance(error, StepError) and not isinstance(cause, HoldfastError)
