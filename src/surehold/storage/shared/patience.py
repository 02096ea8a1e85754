"""Repeating calls to a server while it is away."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from surehold.errors import StorageError

T = TypeVar("T")

_FIRST_WAIT = 0.05


def patiently(work: Callable[[], T], patience: float, *, longest_wait: float = 1.0) -> T:
    """Do *work*, and repeat it for up to *patience* seconds after retryable errors.

    It must be safe to repeat whether or not an earlier attempt took effect.
    """
    give_up = time.monotonic() + patience
    wait = _FIRST_WAIT
    while True:
        try:
            return work()
        except StorageError as error:
            if not error.retryable or time.monotonic() + wait > give_up:
                raise
        time.sleep(wait * (0.5 + random.random()))
        wait = min(2 * wait, longest_wait)
