"""Attempts of a call: how many, how far apart, how long, and how many at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypedDict

import msgspec

from surehold.core.policy.triggers import LONGEST_SECONDS
from surehold.errors import RunError, StepError, StorageError, SureholdError, UsageError

_MISTAKES = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    ArithmeticError,
    AssertionError,
    ImportError,
    NotImplementedError,
)
"""Errors of the program itself, which another attempt does not avoid."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, weakref=True, eq=False):
    """Attempts, time limit and concurrency of a node, a step or a tool.

    An attempt that raises is followed by up to *retries* more, *backoff* seconds after the first
    and twice as long after each of the next, at most *max_backoff*. Mistakes in the code
    (`TypeError`, `KeyError`, ...) are not tried again, and neither are errors of the classes in
    *non_retryable*. *timeout* limits each attempt, in seconds, and *heartbeat_timeout* the time
    between two calls of `surehold.heartbeat` in it; *total_timeout* seconds after the first one
    began no other begins, in another process either. *concurrency* is the number of
    attempts at a time, in this process, of everything that shares the value.

    >>> policy = RetryPolicy(retries=3, backoff=0.5)
    >>> [policy.pause_after(failures, OSError()) for failures in range(4)]
    [0.5, 1.0, 2.0, None]
    """

    retries: int = 0
    backoff: float = 1.0
    max_backoff: float = 60.0
    non_retryable: type[Exception] | tuple[type[Exception], ...] = ()
    timeout: float | None = None
    total_timeout: float | None = None
    heartbeat_timeout: float | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        _check("retries", self.retries, whole=True)
        _check("backoff", self.backoff)
        _check("max_backoff", self.max_backoff)
        _check_classes(self.non_retryable)
        for name in ("timeout", "total_timeout", "heartbeat_timeout"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), above=0)
        if self.concurrency is not None:
            _check("concurrency", self.concurrency, whole=True, above=0)

    @property
    def too_long(self) -> str:
        """The reason for which an attempt is given up."""
        if self.heartbeat_timeout is None:
            return f"took over {self.timeout} s"
        longest = f", or {self.timeout} s in all" if self.timeout is not None else ""
        return f"had no heartbeat for {self.heartbeat_timeout} s{longest}"

    def retries_after(self, error: Exception) -> bool:
        """Return True if another attempt may help after *error*."""
        return may_help(error) and not isinstance(error, self.non_retryable)

    def pause_after(self, failures: int, error: Exception, elapsed: float = 0.0) -> float | None:
        """Seconds before the attempt after one more than *failures*; None for no attempt.

        *elapsed* seconds ago the first attempt began.
        """
        if failures >= self.retries or not self.retries_after(error):
            return None
        pause = float(min(self.backoff * 2.0**failures, self.max_backoff))
        late = self.total_timeout is not None and elapsed + pause > self.total_timeout
        return None if late else pause


def may_help(error: Exception) -> bool:
    """Return True if another attempt may help: not if program or data are wrong."""
    cause = error.__cause__ if isinstance(error, StepError) and error.__cause__ else error
    if isinstance(cause, StorageError):
        return bool(cause.retryable)
    if isinstance(cause, SureholdError):
        return type(cause) in (RunError, StepError)
    return not isinstance(cause, _MISTAKES)


class RetryOptions(TypedDict, total=False):
    """The fields of a `RetryPolicy` as options, or the policy itself."""

    retries: int | None
    backoff: float | None
    max_backoff: float | None
    non_retryable: type[Exception] | tuple[type[Exception], ...]
    timeout: float | None
    total_timeout: float | None
    heartbeat_timeout: float | None
    concurrency: int | None
    policy: RetryPolicy | None


def read_policy(options: RetryOptions) -> RetryPolicy:
    """Return the policy in *options*, or one made from its fields there; not both."""
    given: Mapping[str, object] = options
    known = RetryPolicy.__struct_fields__
    fields: dict[str, Any] = {one: given[one] for one in known if given.get(one) is not None}
    policy = options.get("policy")
    if policy is None:
        return RetryPolicy(**fields)
    if not isinstance(policy, RetryPolicy):
        raise UsageError(f"policy is {policy!r}", hint="give a surehold.RetryPolicy")
    if fields:
        raise UsageError(f"policy= and {next(iter(fields))}= are given", hint="give one of them")
    return policy


def refuse_options(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise a `UsageError` for an option that *what* lacks, with the nearest name.

    >>> refuse_options("step", ["retry"], ["name", "retries"])
    Traceback (most recent call last):
    surehold.errors.UsageError: step has no option 'retry' (did you mean retries=?)
    """
    for name in given:
        if name in known:
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}=?" if near else f"it has: {', '.join(known)}"
        raise UsageError(f"{what} has no option {name!r}", hint=hint)


def _check_classes(given: Any) -> None:
    classes = given if isinstance(given, tuple) else (given,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise UsageError(
                f"non_retryable is {given!r}", hint="give a class of exceptions, or a tuple of them"
            )


def _check(name: str, value: Any, *, whole: bool = False, above: int | None = None) -> None:
    kinds = (int,) if whole else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and value >= 0
    fits = fits and (whole or value <= LONGEST_SECONDS)
    if not fits or (above is not None and value <= above):
        number = "a whole number" if whole else "a number"
        least = f"above {above}" if above is not None else "from 0"
        most = "" if whole else ", at most 1e9"
        raise UsageError(f"{name} is {value!r}", hint=f"give {number} {least}{most}")
