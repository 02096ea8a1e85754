"""Figures over many runs, counted at most every few seconds.

Both look at the newest runs only and say so, and say when they were counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

import msgspec

from surehold.core.records import Lease
from surehold.engine.inspect import KindStats, status_of_run
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import Leasing, RecordQuery, RunInfo, RunQuery, is_live

_MOST_RUNS = 1000
_MOST_RECORDS = 2000
_MOST_BARS = 40
_SECONDS = 10.0
_LISTED = 25
_WIDE, _TALL = 640.0, 120.0
T = TypeVar("T")


class GrowthBar(msgspec.Struct, frozen=True):
    """The bytes of the runs that were last saved in a span of time."""

    label: str
    stored: int
    runs: int
    x: float
    y: float
    width: float
    height: float


class StorageSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by name, run, kind and time."""

    at: datetime
    count: int
    more: bool
    """True if there are more runs than were counted."""
    checkpoints: int
    total: int
    names: list[tuple[str, int, int]]
    """Name, runs, bytes."""
    largest: list[RunInfo]
    kinds: list[KindStats]
    """Of the newest records."""
    records: int
    growth: list[GrowthBar]
    unit: str


class HealthSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Runs by status, those that failed or are stale, and the leases that are held."""

    at: datetime
    runs: list[RunInfo]
    more: bool
    counts: dict[str, int]
    wrong: list[tuple[RunInfo, str]]
    held: list[tuple[RunInfo, Lease]]


class Surveys:
    """The surveys of one storage; each is renewed after ten seconds."""

    def __init__(
        self, manager: CheckpointManager, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._manager = manager
        self._clock = clock
        self._made: dict[str, tuple[float, Any]] = {}
        self._lock = Lock()

    def storage(self) -> StorageSurvey:
        """Bytes by name, run, kind and time."""
        return self._fresh("storage", lambda: survey_storage(self._manager))

    def health(self) -> HealthSurvey:
        """Statuses and leases."""
        return self._fresh("health", lambda: survey_health(self._manager))

    def forget(self) -> None:
        """Count again next time: something was changed here."""
        with self._lock:
            self._made.clear()

    def _fresh(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            made = self._made.get(name)
            if made is None or self._clock() - made[0] > _SECONDS:
                value = make()
                made = self._made[name] = (self._clock(), value)
            result: T = made[1]
            return result


def _newest(manager: CheckpointManager) -> tuple[list[RunInfo], bool]:
    runs = list(manager.storage.runs(RunQuery(limit=_MOST_RUNS + 1)))
    return runs[:_MOST_RUNS], len(runs) > _MOST_RUNS


def survey_storage(manager: CheckpointManager) -> StorageSurvey:
    """Count the bytes of the newest runs, and of the newest records by kind."""
    runs, more = _newest(manager)
    stored: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for run in runs:
        stored[run.name] += run.stored
        counts[run.name] += 1
    kinds: dict[str, KindStats] = {}
    records = 0
    query = RecordQuery(notes=True, limit=_MOST_RECORDS)
    for header in islice(manager.storage.headers(query), _MOST_RECORDS):
        kind = f"{header.kind} note" if header.frame == "note" else f"{header.kind} checkpoint"
        KindStats.add_to(kinds, kind, header)
        records += 1
    growth, unit = _growth(runs)
    return StorageSurvey(
        at=datetime.now(UTC),
        count=len(runs),
        more=more,
        checkpoints=sum(run.checkpoints for run in runs),
        total=sum(run.stored for run in runs),
        names=[(name, counts[name], size) for name, size in stored.most_common(_LISTED)],
        largest=sorted(runs, key=lambda run: -run.stored)[:_LISTED],
        kinds=sorted(kinds.values(), key=lambda one: -one.stored_bytes),
        records=records,
        growth=growth,
        unit=unit,
    )


def _growth(runs: list[RunInfo]) -> tuple[list[GrowthBar], str]:
    """Bars of the volume last saved, by hour, day or month, with empty spans."""
    if not runs:
        return [], ""
    moments = [run.saved_at.astimezone(UTC) for run in runs]
    seconds = (max(moments) - min(moments)).total_seconds()
    unit, form = "month", "%Y-%m"
    if seconds <= _MOST_BARS * 3600:
        unit, form = "hour", "%Y-%m-%d %H:00"
    elif seconds <= _MOST_BARS * 86_400:
        unit, form = "day", "%Y-%m-%d"
    stored: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for run, moment in zip(runs, moments, strict=True):
        stored[f"{moment:{form}}"] += run.stored
        counts[f"{moment:{form}}"] += 1
    labels = sorted(stored)[-_MOST_BARS:]
    most = max(stored[label] for label in labels) or 1
    width = min(60.0, _WIDE / len(labels))
    return [
        GrowthBar(
            label,
            stored[label],
            counts[label],
            at * width + width * 0.1,
            _TALL - _TALL * stored[label] / most,
            width * 0.8,
            _TALL * stored[label] / most,
        )
        for at, label in enumerate(labels)
    ], unit


def survey_health(manager: CheckpointManager) -> HealthSurvey:
    """Look at the newest runs and at the leases of those that are running."""
    runs, more = _newest(manager)
    storage = manager.storage
    now = time.time()
    counts: Counter[str] = Counter()
    wrong: list[tuple[RunInfo, str]] = []
    held: list[tuple[RunInfo, Lease]] = []
    for run in runs:
        status = status_of_run(storage, run)
        if status in ("running", "waiting") and isinstance(storage, Leasing):
            lease = storage.lease_of(run.run_id)
            if is_live(lease, now) and lease is not None:
                held.append((run, lease))
        counts[status] += 1
        if status in ("failed", "dead", "stale"):
            wrong.append((run, status))
    return HealthSurvey(
        at=datetime.now(UTC),
        runs=runs,
        more=more,
        counts=dict(counts.most_common()),
        wrong=wrong,
        held=held,
    )
