"""A circuit breaker: what fails repeatedly is left alone, then tried once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from surehold.errors import UsageError


class BreakerRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules by which a breaker opens, and for how long."""

    failures: int = 3
    """Failed calls in a row that open the breaker; a call that took long to fail opens it alone."""
    pause: float = 5.0
    """Seconds until one call is let through to see whether it works again."""
    factor: float = 2.0
    """By which the pause grows each time that it does not."""
    longest_pause: float = 60.0

    def __post_init__(self) -> None:
        if self.failures < 1 or self.factor < 1:
            raise UsageError("failures and factor must be 1 or more")
        if not 0 < self.pause <= self.longest_pause:
            raise UsageError("pause must be more than 0, and no more than longest_pause")


class Breaker:
    """Says whether a call is worth trying, told how the calls before it went.

    *clock* is monotonic seconds.

    >>> now = 0.0
    >>> breaker = Breaker(BreakerRules(failures=2, pause=5), clock=lambda: now)
    >>> breaker.failed(), breaker.failed(), breaker.allows()
    (None, None, False)
    >>> now = 5.0
    >>> breaker.allows(), breaker.allows()
    (True, False)
    >>> breaker.worked(), breaker.state
    (True, 'closed')
    """

    def __init__(
        self, rules: BreakerRules | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rules = rules or BreakerRules()
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._pause = self._rules.pause
        self._opens_at: float | None = None
        self._probing_since: float | None = None

    def renew_lock(self) -> None:
        """Give a child process a lock of its own, after a fork."""
        self._lock = threading.Lock()

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """Closed: calls go through. Open: none does. Half-open: one may, or is on its way."""
        with self._lock:
            if self._opens_at is None:
                return "closed"
            return "open" if self._clock() < self._opens_at else "half-open"

    def allows(self) -> bool:
        """True if a call may be made now; while half-open, only for the first who asks."""
        with self._lock:
            now = self._clock()
            if self._opens_at is None:
                return True
            if now < self._opens_at:
                return False
            # The call that had the probe may never return.
            if self._probing_since is not None and now - self._probing_since < self._pause:
                return False
            self._probing_since = now
            return True

    def worked(self) -> bool:
        """A call came through; True if that closed it."""
        with self._lock:
            closed = self._opens_at is not None
            self._failures, self._pause = 0, self._rules.pause
            self._opens_at = self._probing_since = None
            return closed

    def failed(self, *, slowly: bool = False) -> None:
        """Count a failed call; a call that failed *slowly* opens the breaker at once."""
        with self._lock:
            self._failures += self._rules.failures if slowly else 1
            if self._opens_at is not None:
                self._pause = min(self._pause * self._rules.factor, self._rules.longest_pause)
            elif self._failures < self._rules.failures:
                return
            self._opens_at = self._clock() + self._pause
            self._probing_since = None
