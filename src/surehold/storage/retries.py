"""Retrying what may work in a moment, and giving up on what stalls."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from surehold.errors import StorageError, StorageUnavailableError, UsageError
from surehold.storage.process import start_thread

T = TypeVar("T")

TRANSIENT = frozenset(
    {
        *(errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ETXTBSY, errno.ENOLCK, errno.ENOBUFS),
        *(errno.ETIMEDOUT, errno.ESTALE, errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    }
)
"""Error numbers of what may work in a moment.

Not that a process has too many files open: to wait for that takes files as well.
"""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The number of retries after a failure, and the time they may take.

    Only what is transient is tried again (`is_transient`): a missing file, a refused permission or
    a full disk fails at once.

    >>> Retry().waits()
    (0.1, 0.2, 0.4)
    """

    retries: int = 3
    """Attempts after the first failure."""
    first_wait: float = 0.1
    """Seconds before the first retry."""
    factor: float = 2.0
    """By which each wait is longer than the one before."""
    longest_wait: float = 5.0
    jitter: float = 0.1
    """Up to so many seconds are added to each wait, at random."""
    deadline: float | None = 10.0
    """Seconds after which it is given up, even if a call hangs; None for no limit.

    For a large file they count from the last chunk that was moved.
    """

    def __post_init__(self) -> None:
        if self.retries < 0 or self.factor < 1:
            raise UsageError("retries must be 0 or more, and factor 1 or more")
        if min(self.first_wait, self.longest_wait, self.jitter) < 0:
            raise UsageError("waits and jitter must be 0 or more seconds")
        if self.deadline is not None and self.deadline <= 0:
            raise UsageError(f"deadline is {self.deadline}", hint="give seconds, or None")

    def waits(self) -> tuple[float, ...]:
        """The seconds before each retry, without the jitter."""
        every = (self.first_wait * self.factor**n for n in range(self.retries))
        return tuple(min(wait, self.longest_wait) for wait in every)


def is_transient(error: BaseException) -> bool:
    """True if a retry may help, by the error number or a storage's `.retryable`.

    >>> is_transient(BlockingIOError(errno.EAGAIN, "busy")), is_transient(FileNotFoundError())
    (True, False)
    """
    if isinstance(error, StorageError):
        return error.retryable
    return isinstance(error, OSError) and error.errno in TRANSIENT


def retried(
    call: Callable[[], T],
    retry: Retry,
    on_retry: Callable[[int, BaseException], None] | None = None,
) -> T:
    """Return what *call* returns, repeating it by *retry* on transient errors.

    *on_retry* receives the number of each retry and the error that led to it. The call must be one
    that can be repeated whether or not it had an effect.
    """
    try:
        return call()
    except Exception as error:
        if not retry.retries or not is_transient(error):
            raise
        return _again(call, retry, error, on_retry)


def _again(
    call: Callable[[], T],
    retry: Retry,
    error: Exception,
    on_retry: Callable[[int, BaseException], None] | None,
) -> T:
    import stamina

    last: BaseException = error
    for attempt in stamina.retry_context(
        on=is_transient,
        attempts=retry.retries + 1,
        timeout=retry.deadline,
        wait_initial=retry.first_wait,
        wait_max=retry.longest_wait,
        wait_jitter=retry.jitter,
        wait_exp_base=retry.factor,
    ):
        with attempt:
            # The first attempt was made before; most calls need no more than that one.
            if attempt.num == 1:
                raise error
            if on_retry is not None:
                on_retry(attempt.num - 1, last)
            try:
                return call()
            except Exception as failure:
                last = failure
                raise
    raise AssertionError("unreachable")


class _GivenUp(Exception):
    """No one waits for the result any more: ends the work, is never retried."""


class CallProgress:
    """The progress of a call that is waited for, and whether it was given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved_at = time.monotonic()
        self._given_up = False

    def moved(self) -> None:
        """Report progress. Raises if the caller has given up: the call must stop then."""
        with self._lock:
            if self._given_up:
                raise _GivenUp("it took too long")
            self._moved_at = time.monotonic()

    def seconds_left(self, deadline: float) -> float:
        """Until it is to be given up."""
        with self._lock:
            return self._moved_at + deadline - time.monotonic()

    def give_up(self, deadline: float) -> bool:
        """Stop waiting for it, unless it moved just now."""
        with self._lock:
            self._given_up = self._moved_at + deadline <= time.monotonic()
            return self._given_up


def within(deadline: float | None, call: Callable[[CallProgress], T], what: str) -> T:
    """Return the result of *call*; `StorageUnavailableError` if it stalls that long.

    A system call that hangs cannot be ended, so it continues in a thread of its own, and its
    result is discarded; at the next `CallProgress.moved` it learns that it was given up.
    """
    progress = CallProgress()
    if deadline is None:
        return call(progress)
    result: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            result.append(call(progress))
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    start_thread(threading.Thread(target=work, name="surehold-io", daemon=True))
    while not done.wait(max(progress.seconds_left(deadline), 0)):
        if progress.give_up(deadline):
            raise StorageUnavailableError(
                f"{what} did not return within {deadline:g} s",
                hint="the medium hangs; what was asked of it may still happen",
                deadline=deadline,
            )
    if failure:
        raise failure[0]
    return result[0]
