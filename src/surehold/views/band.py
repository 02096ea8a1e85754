"""The storage in one line: what runs, waits, failed, is stuck, and cost today."""

from __future__ import annotations

import msgspec

from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import count_by_status
from surehold.executors import unserved
from surehold.storage.queueing import queues_in
from surehold.views.costs import spent_today


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of runs by what they need."""

    running: int
    """Executed by a process now."""
    waiting: int
    """Need a person, an event or a time."""
    failed: int
    stale: int
    """Their process is gone."""
    dead: int
    queued: int
    unserved: int
    """Queued runs whose code no worker serves."""
    today: float
    """Dollars of recorded calls since midnight, UTC."""

    @property
    def wrong(self) -> int:
        """Runs that somebody has to look at."""
        return self.failed + self.stale + self.dead


_LOOKED_AT = 100


def read_band(manager: CheckpointManager) -> Band:
    """Count the runs of a storage; reads heads and headers, and no state."""
    counts, _ = count_by_status(manager.storage, _LOOKED_AT)
    has_queues = counts["queued"] and queues_in(manager.storage) is not None
    return Band(
        **{name: counts[name] for name in ("running", "waiting", "failed", "stale", "dead")},
        queued=counts["queued"],
        unserved=sum(one.runs for one in unserved(manager)) if has_queues else 0,
        today=spent_today(manager.storage),
    )
