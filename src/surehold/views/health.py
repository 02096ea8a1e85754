"""Health of runs and storage: what is wrong, and the command that helps.

All runs are counted; the newest, and those that may be wrong, are looked at. A survey is made at
most every few seconds.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import msgspec

from surehold.core.records import Header, Lease
from surehold.engine.managers import CheckpointManager
from surehold.engine.repair import verify_missing
from surehold.engine.runs import at_its_step, count_by_status, waiting_now
from surehold.errors import DataError
from surehold.storage.addresses import mask_url, place_of
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, is_live, newest_lease
from surehold.views.band import Band, read_band
from surehold.views.costs import CostReport, read_costs
from surehold.views.documents import Document
from surehold.views.stats import StorageSurvey, survey_storage
from surehold.views.waiting import how_to_resume
from surehold.views.words import ago, counted, size

_SECONDS = 10.0
_BAND_SECONDS = 2.0
_LOOKED_AT = 100
"""Runs of one kind, such as stale or failed ones, that are looked at; the others are counted."""
_NEWEST = 20
_SHOWN = 50
"""Runs of each kind that the page names."""
"""Runs that are looked at whatever their status."""
_LITTLE = 100 << 20
_LITTLE_SHARE = 0.01
_RECENT = timedelta(days=1)
_LOOPING = 3
"""Resumes in a row that saved nothing, after which a run is said to loop."""
WRONG = ("failed", "dead", "stale")
"""Statuses of runs that somebody has to look at."""
T = TypeVar("T")
_GONE = {"stale": "its process is gone", "dead": "its workers died, and it is a dead letter"}


class Problem(msgspec.Struct):
    """Something that is wrong, and the command that helps."""

    kind: str
    run_id: str
    message: str
    help: str


class Status(Document, kw_only=True, tag="status"):
    healthy: bool
    storage: str
    runs: dict[str, int]
    """The number of runs by status."""
    pending: int
    free_bytes: int | None
    problems: list[Problem]


def read_status(manager: CheckpointManager, address: str, graphs: Mapping[str, str]) -> Status:
    """The health of the storage at *address* and its runs."""
    problems: list[Problem] = []
    counts: Counter[str] = Counter()
    waiting = 0
    try:
        counts, looked = count_by_status(manager.storage, _LOOKED_AT)
        known = {run.run_id for run, _ in looked}
        newest = [*manager.storage.runs(RunQuery(limit=_NEWEST))]
        looked += [(run, run.status) for run in newest if run.run_id not in known]
        waiting = counts["waiting"]
        for run, shown in sorted(looked, key=lambda one: -one[0].ordinal):
            waiting += _look_at(manager, run, shown, graphs, problems) - (shown == "waiting")
        for shown in _GONE:
            if more := counts[shown] - sum(one.kind == shown for one in problems):
                text = f"{counted(more, 'more run')} like these"
                problems.append(Problem(shown, "", text, f"surehold runs --status {shown}"))
        problems += _missed(manager)
        for verdict in verify_missing(manager.reader, thorough=counts.total() <= _LOOKED_AT):
            problems += [_damage(verdict.run_id, text) for text in verdict.problems]
    except DataError as error:
        damage = _damage(str(error.facts.get("run_id", "")), error.message)
        problems += [damage] if damage not in problems else []
    free = _all_bytes(address)
    if free is not None and free[0] < max(_LITTLE, free[1] * _LITTLE_SHARE):
        text = f"only {size(free[0])} are free on the disk"
        problems.append(Problem("disk", "", text, "surehold forget"))
    return Status(
        healthy=not problems,
        storage=mask_url(address),
        runs=dict(sorted(counts.items())),
        pending=waiting,
        free_bytes=free[0] if free else None,
        problems=problems,
    )


def _look_at(
    manager: CheckpointManager,
    run: RunInfo,
    shown: str,
    graphs: Mapping[str, str],
    problems: list[Problem],
) -> int:
    """Add a run's problems to *problems*; return how many things it waits for."""
    run = at_its_step(manager.storage, run)
    if shown in _GONE:
        text = f"{_GONE[shown]}; last saved {ago(run.saved_at)}, at step {run.step}"
        problems.append(Problem(shown, run.run_id, text, how_to_resume(manager, run, graphs)))
    if run.status == "failed" and run.saved_at > datetime.now(UTC) - _RECENT:
        text = f"it failed {ago(run.saved_at)}, at step {run.step}"
        problems.append(Problem("failed", run.run_id, text, f"surehold show {run.run_id}"))
    # The head of a damaged run is listed without its step.
    if run.status != "completed" or not run.step:
        try:
            newest = manager.reader.newest(run)
            if newest is not None and run.status != "completed":
                problems += _loop(manager, newest)
            return len(waiting_now(manager.reader, run)) if run.open else 0
        except DataError as error:
            problems.append(_damage(run.run_id, error.message))
    return 0


def _loop(manager: CheckpointManager, newest: Header) -> Iterator[Problem]:
    lease = newest_lease(manager.storage, newest.run_id)
    if lease is None or not newest.epoch:
        return
    ended = lease.epoch - is_live(lease, time.time()) - newest.epoch
    if ended >= _LOOPING:
        text = f"{counted(ended, 'resume')} since step {newest.step} ended without a save"
        yield Problem("crash loop", newest.run_id, text, f"surehold log {newest.run_id}")


def _damage(run_id: str, message: str) -> Problem:
    return Problem("damage", run_id, message, f"surehold verify --read-data {run_id}".strip())


def _missed(manager: CheckpointManager) -> Iterator[Problem]:
    since = datetime.now(UTC) - _RECENT
    query = RecordQuery(kind="missed", notes=True, since=since, limit=1000)
    counts: Counter[str] = Counter()
    for header in manager.storage.headers(query):
        counts[header.run_id] += header.metadata.get("saves", 1)
    for run_id, count in counts.items():
        text = f"{counted(count, 'save')} failed with only a warning, in the last day"
        yield Problem("failed saves", run_id, text, f"surehold log {run_id}")


def free_bytes(address: str) -> int | None:
    """Free bytes of the storage's file system; None of a server."""
    found = _all_bytes(address) if address else None
    return found[0] if found is not None else None


def _all_bytes(address: str) -> tuple[int, int] | None:
    """Free and all bytes of the storage's file system."""
    place = place_of(address)
    if place is None:
        return None
    there = place.absolute()
    while not there.exists() and there != Path("/"):
        there = there.parent
    usage = shutil.disk_usage(there)
    return usage.free, usage.total


class HealthSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Runs by status, those that failed or are stale, and the leases that are held."""

    at: datetime
    counts: dict[str, int]
    """All runs by status."""
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

    def band(self) -> Band:
        """Counts by what runs need, renewed after two seconds."""
        return self._fresh("band", lambda: read_band(self._manager), _BAND_SECONDS)

    def costs(self) -> CostReport:
        """The costs over runs."""
        return self._fresh("costs", lambda: read_costs(self._manager))

    def forget(self) -> None:
        """Count again next time: something was changed here."""
        with self._lock:
            self._made.clear()

    def _fresh(self, name: str, make: Callable[[], T], seconds: float = _SECONDS) -> T:
        with self._lock:
            made = self._made.get(name)
            if made is None or self._clock() - made[0] > seconds:
                value = make()
                made = self._made[name] = (self._clock(), value)
            result: T = made[1]
            return result


def survey_health(manager: CheckpointManager) -> HealthSurvey:
    """Count all runs, and look at those that failed, are stale or are held."""
    storage = manager.storage
    counts, looked = count_by_status(storage, _SHOWN)
    looked.sort(key=lambda one: -one[0].ordinal)
    now = time.time()
    held: list[tuple[RunInfo, Lease]] = []
    for run, status in looked:
        if status in ("running", "waiting"):
            lease = newest_lease(storage, run.run_id)
            if lease is not None and is_live(lease, now):
                held.append((run, lease))
    return HealthSurvey(
        at=datetime.now(UTC),
        counts=dict(counts.most_common()),
        wrong=[(run, status) for run, status in looked if status in WRONG],
        held=held,
    )
