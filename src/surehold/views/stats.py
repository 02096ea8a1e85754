"""Figures from a storage's headers: bytes by kind and run, resumes, step times."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from statistics import median

import msgspec

from surehold.core.records import OVER, Header
from surehold.engine.journal import Reader
from surehold.engine.managers import CheckpointManager
from surehold.engine.metrics import resume_cause
from surehold.engine.runs import count_by_status
from surehold.storage.addresses import mask_url, place_of
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, is_live, newest_lease
from surehold.views.documents import Document

_SAMPLE = 20
_MOST_RUNS = 1000
_MOST_COUNTED = 5000
_MOST_RECORDS = 2000
_MOST_SPANS = 40
_LISTED = 25
_OLD = timedelta(days=30)
_WEEK = timedelta(days=7)


class KindStats(msgspec.Struct):
    """The bytes of the checkpoints of a kind or of a run."""

    name: str
    checkpoints: int
    logical_bytes: int
    stored_bytes: int

    @classmethod
    def add_to(cls, known: dict[str, KindStats], name: str, header: Header) -> None:
        """Count a checkpoint under *name*."""
        one = known.setdefault(name, cls(name, 0, 0, 0))
        one.checkpoints += 1
        one.logical_bytes += header.size
        one.stored_bytes += header.stored


class ResumeStats(msgspec.Struct):
    """The outcome of the resumes with one cause."""

    cause: str
    tried: int
    succeeded: int
    failed: int


class Latency(msgspec.Struct):
    """Durations in seconds."""

    name: str
    count: int
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, name: str, values: list[float]) -> Latency:
        """The latency of what took these seconds, one at least."""
        ordered = sorted(values)
        p95 = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
        return cls(name, len(values), median(ordered), p95, ordered[-1])


class Figures:
    """Collects what the headers of runs tell."""

    def __init__(self) -> None:
        self.by_kind: dict[str, KindStats] = {}
        self.by_run: dict[str, KindStats] = {}
        self.resumes: dict[str, ResumeStats] = {}
        """By their cause. A resume is recorded when it begins, by the epoch of the lease it takes;
        one that saved nothing counts as failed."""
        self.steps: list[float] = []
        """Seconds between the checkpoints of one attempt."""

    def take(self, reader: Reader, run: RunInfo) -> None:
        """Count a run."""
        storage = reader.storage
        query = RecordQuery(run_id=run.run_id, notes=True)
        headers = list(storage.headers(query))[::-1]
        for header in headers:
            if header.frame != "note":
                KindStats.add_to(self.by_kind, header.kind, header)
                KindStats.add_to(self.by_run, run.run_id, header)
        if (run.name, run.kind) == ("group", "group"):
            return  # every checkpoint of a group may take a lease, and nothing is resumed
        lease = newest_lease(storage, run.run_id)
        ended = lease.epoch - is_live(lease, time.time()) if lease is not None else 0
        self._count_resumes(headers, ended)

    def _count_resumes(self, headers: Iterable[Header], newest_epoch: int) -> None:
        """Count the resumes of a run up to *newest_epoch*, the last that has ended.

        A lease under which the run was only encrypted is none.
        """
        before: Header | None = None
        encrypted: set[int] = set()
        last: dict[int, Header] = {}
        causes: dict[int, str] = {}
        passed = 0
        for header in headers:
            if header.scope or header.frame == "note":
                passed += 1
                if header.frame == "note" and header.kind == "key":
                    encrypted.add(header.epoch)
                continue
            if before is not None and header.epoch == before.epoch:
                self.steps.append((header.saved_at - before.saved_at).total_seconds())
            elif before is not None and header.epoch > before.epoch > 0:
                causes[header.epoch] = cause = resume_cause(before.status)
                if header.seq - before.seq - 1 == passed:  # else what they saved was pruned
                    for epoch in range(before.epoch + 1, header.epoch):
                        if epoch not in encrypted:
                            self._resumed(cause, succeeded=False)
            last[header.epoch] = before = header
            passed = 0
        for epoch, cause in causes.items():
            self._resumed(cause, succeeded=last[epoch].status != "failed")
        if before is not None and before.epoch:
            cause = resume_cause(before.status)
            for epoch in range(before.epoch + 1, newest_epoch + 1):
                if epoch not in encrypted:
                    self._resumed(cause, succeeded=before.status in OVER)

    def _resumed(self, cause: str, *, succeeded: bool) -> None:
        counts = self.resumes.setdefault(cause, ResumeStats(cause, 0, 0, 0))
        counts.tried += 1
        counts.succeeded += succeeded
        counts.failed += not succeeded


def load_times(reader: Reader, runs: Iterable[RunInfo]) -> list[float]:
    """Measure the seconds to load the newest checkpoints of some runs."""
    times: list[float] = []
    for run in runs:
        if len(times) == _SAMPLE:
            break
        started = time.perf_counter()
        newest = reader.newest(run)
        if newest is not None:
            reader.load(newest).state()
            times.append(time.perf_counter() - started)
    return times


class Stats(Document, kw_only=True, tag="stats"):
    storage: str
    runs: int
    """All runs of the storage."""
    counted: int
    """The newest runs, which the other figures are of."""
    checkpoints: int
    logical_bytes: int
    stored_bytes: int
    file_bytes: int | None
    by_kind: list[KindStats]
    by_run: list[KindStats]
    resumes: list[ResumeStats]
    latency: list[Latency]


def read_stats(
    manager: CheckpointManager,
    address: str,
    progress: Callable[[list[RunInfo]], Iterable[RunInfo]] = iter,
    limit: int | None = None,
) -> Stats:
    """Figures over the newest runs of a storage; *progress* passes each on."""
    runs = list(manager.storage.runs(RunQuery(limit=limit)))
    every = count_by_status(manager.storage, 0)[0].total() if len(runs) == limit else len(runs)
    reader = manager.reader
    figures = Figures()
    for run in progress(runs):
        figures.take(reader, run)
    times = {"load, now": load_times(reader, runs), "between checkpoints": figures.steps}
    latency = [Latency.of(name, values) for name, values in times.items() if values]
    by_kind = _by_size(figures.by_kind)
    return Stats(
        storage=mask_url(address),
        runs=every,
        counted=len(runs),
        checkpoints=sum(kind.checkpoints for kind in by_kind),
        logical_bytes=sum(kind.logical_bytes for kind in by_kind),
        stored_bytes=sum(kind.stored_bytes for kind in by_kind),
        file_bytes=_file_bytes(address),
        by_kind=by_kind,
        by_run=_by_size(figures.by_run),
        resumes=sorted(figures.resumes.values(), key=lambda one: one.cause),
        latency=latency,
    )


def _by_size(known: dict[str, KindStats]) -> list[KindStats]:
    return sorted(known.values(), key=lambda one: -one.stored_bytes)


def _file_bytes(address: str) -> int | None:
    place = place_of(address)
    if place is None:
        return None
    files = place.rglob("*") if place.is_dir() else place.parent.glob(f"{place.name}*")
    return sum(file.stat().st_size for file in files if file.is_file())


class Growth(msgspec.Struct, frozen=True):
    """The bytes that were written in a span of time."""

    label: str
    stored: int
    runs: int
    """The number of runs that were written to in this time."""
    total: int
    """The bytes of the journal at its end, of what is there today."""


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
    growth: list[Growth]
    unit: str
    per_day: int | None
    """Bytes written a day, over the last week at most; None if that cannot be told yet."""
    old: int
    """Bytes of the runs that were completed more than 30 days ago."""
    old_runs: int
    """At most 5,000, of all runs."""


def newest_runs(manager: CheckpointManager, most: int = _MOST_RUNS) -> tuple[list[RunInfo], bool]:
    """The newest runs that a survey looks at, and if there are more."""
    runs = list(manager.storage.runs(RunQuery(limit=most + 1)))
    return runs[:most], len(runs) > most


def survey_storage(manager: CheckpointManager) -> StorageSurvey:
    """Count the bytes of the newest runs, and of the newest records by kind."""
    runs, more = newest_runs(manager, _MOST_COUNTED)
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
    total = sum(run.stored for run in runs)
    growth, unit = _growth(runs, total)
    before = datetime.now(UTC) - _OLD
    query_old = RunQuery(status="completed", saved_before=before, limit=_MOST_COUNTED)
    old = list(manager.storage.runs(query_old))
    return StorageSurvey(
        at=datetime.now(UTC),
        count=len(runs),
        more=more,
        checkpoints=sum(run.checkpoints for run in runs),
        total=total,
        names=[(name, counts[name], size) for name, size in stored.most_common(_LISTED)],
        largest=sorted(runs, key=lambda run: -run.stored)[:_LISTED],
        kinds=sorted(kinds.values(), key=lambda one: -one.stored_bytes),
        records=records,
        growth=growth,
        unit=unit,
        per_day=_per_day(runs),
        old=sum(run.stored for run in old),
        old_runs=len(old),
    )


def _growth(runs: Sequence[RunInfo], total: int) -> tuple[list[Growth], str]:
    """The bytes written by hour, day or month, up to *total*.

    Those of a run are spread evenly over its time.
    """
    if not runs:
        return [], ""
    first, last = min(run.started_at for run in runs), max(run.saved_at for run in runs)
    seconds = (last - first).total_seconds()
    unit, form = "month", "%Y-%m"
    if seconds <= _MOST_SPANS * 3600:
        unit, form = "hour", "%Y-%m-%d %H:00"
    elif seconds <= _MOST_SPANS * 86_400:
        unit, form = "day", "%Y-%m-%d"
    begins = [_begin(last, unit)]
    while begins[0] > first and len(begins) < _MOST_SPANS:
        begins.insert(0, _begin(begins[0] - timedelta(microseconds=1), unit))
    ends = [*begins[1:], last + timedelta(microseconds=1)]
    stored, wrote = [0.0] * len(begins), [0] * len(begins)
    for run in runs:
        until = bisect_right(begins, run.saved_at)
        for at in range(max(0, bisect_right(begins, run.started_at) - 1), until):
            stored[at] += _written(run, begins[at], ends[at]) or 0
            wrote[at] += 1
    spans: list[Growth] = []
    for begin, size, count in zip(begins[::-1], stored[::-1], wrote[::-1], strict=True):
        spans.append(Growth(f"{begin:{form}}", int(size), count, total))
        total = max(0, total - int(size))
    return spans[::-1], unit


def _begin(moment: datetime, unit: str) -> datetime:
    """The begin of the hour, day or month, UTC, that a moment is in."""
    whole = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return whole
    return whole.replace(hour=0) if unit == "day" else whole.replace(hour=0, day=1)


def _written(run: RunInfo, since: datetime, until: datetime) -> float | None:
    """The bytes that a run wrote in a span, if it wrote evenly; None outside its time."""
    begin, end = max(run.started_at, since), min(run.saved_at, until)
    if begin > end or run.started_at >= until:
        return None
    whole = (run.saved_at - run.started_at).total_seconds()
    return run.stored * (end - begin).total_seconds() / whole if whole > 0 else run.stored


def _per_day(runs: Sequence[RunInfo]) -> int | None:
    """Bytes a day, over the last week at most; None in the first hour."""
    now = datetime.now(UTC)
    first = min((run.started_at for run in runs), default=now)
    if now - first < timedelta(hours=1):
        return None
    since = max(first, now - _WEEK)
    written = sum(_written(run, since, now) or 0 for run in runs)
    return int(written / ((now - since) / timedelta(days=1)))
