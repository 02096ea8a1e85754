"""Facts about a medium, as `surehold doctor` shows them."""

from __future__ import annotations

import time
from collections.abc import Callable

from surehold.storage.abilities import Fact

_LOOKS = 7
_CLOCKS_AGREE = 5.0
"""Seconds that clocks may differ without a warning."""


def measure(server_time: Callable[[], float]) -> list[Fact]:
    """The latency of a server and its clock's difference, by asking for its time."""
    from statistics import median

    seconds: list[float] = []
    ahead: list[float] = []
    for _ in range(_LOOKS):
        sent, start = time.time(), time.perf_counter()
        there = server_time()
        seconds.append(time.perf_counter() - start)
        ahead.append(there - sent - seconds[-1] / 2)
    best = ahead[seconds.index(min(seconds))]
    problem = hint = ""
    if abs(best) > _CLOCKS_AGREE:
        problem = "times of checkpoints are by the clocks of the processes that save them"
        hint = "synchronize the clocks (NTP); leases follow the server's clock and are not affected"
    value = f"{abs(best) * 1000:.0f} ms {'ahead' if best >= 0 else 'behind'}"
    return [
        Fact("latency", f"{median(seconds) * 1000:.2f} ms a round trip"),
        Fact("clock", value, problem, hint),
    ]
