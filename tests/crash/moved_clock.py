"""A clock that is moved: import this before what takes `time.time` and `time.monotonic`.

Only a process of its own may import it: it replaces both for everything imported later.
"""

from __future__ import annotations

import time

__all__ = ["move", "real_monotonic"]

real_monotonic = time.monotonic
_real_time = time.time
_moves: list[float] = []


def move(seconds: float) -> None:
    """Let every clock of this process pass by so many seconds."""
    _moves.append(seconds)


time.time = lambda: _real_time() + sum(_moves)
time.monotonic = lambda: real_monotonic() + sum(_moves)
