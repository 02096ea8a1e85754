"""Figures from a storage's headers: bytes by kind and run, resumes, step times."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median

import msgspec

from holdfast.checkpoint.inspect.metrics import resume_cause
from holdfast.checkpoint.inspect.overview import is_live
from holdfast.checkpoint.journal import Reader
from holdfast.core.records import Header
from holdfast.storage.base import Leasing, RecordQuery, RunInfo

_SAMPLE = 20


class Sizes(msgspec.Struct):
    """Sizes of checkpoints: as whole states, and as stored."""

    checkpoints: int = 0
    logical: int = 0
    stored: int = 0

    def add(self, header: Header) -> None:
        self.checkpoints += 1
        self.logical += header.size
        self.stored += header.stored


class Resumes(msgspec.Struct):
    """Outcomes of resumes; one that saved nothing counts as failed.

    A resume is recorded when it begins, by the epoch of the lease it takes.
    """

    tried: int = 0
    succeeded: int = 0

    @property
    def failed(self) -> int:
        return self.tried - self.succeeded


class Figures:
    """Collects what the headers of runs tell."""

    def __init__(self) -> None:
        self.total = Sizes()
        self.by_kind: dict[str, Sizes] = {}
        self.by_run: dict[str, Sizes] = {}
        self.resumes: dict[str, Resumes] = {}
        self.steps: list[float] = []
        """Seconds between the checkpoints of one attempt."""

    def take(self, reader: Reader, run: RunInfo) -> None:
        """Count a run."""
        storage = reader.storage
        query = RecordQuery(run_id=run.run_id, notes=True)
        headers = list(storage.headers(query))[::-1]
        for header in headers:
            if header.frame == "note":
                continue
            kind = self.by_kind.setdefault(header.kind, Sizes())
            for sizes in (self.total, kind, self.by_run.setdefault(run.run_id, Sizes())):
                sizes.add(header)
        lease = storage.lease_of(run.run_id) if isinstance(storage, Leasing) else None
        ended = lease.epoch - is_live(lease, time.time()) if lease is not None else 0
        self._count_resumes(headers, ended)

    def _count_resumes(self, headers: Iterable[Header], newest_epoch: int) -> None:
        """Count the resumes of a run up to *newest_epoch*, the last that has ended."""
        before: Header | None = None
        last: dict[int, Header] = {}
        causes: dict[int, str] = {}
        passed = 0
        for header in headers:
            if header.scope or header.frame == "note":
                passed += 1
                continue
            if before is not None and header.epoch == before.epoch:
                self.steps.append((header.saved_at - before.saved_at).total_seconds())
            elif before is not None and header.epoch > before.epoch > 0:
                causes[header.epoch] = cause = resume_cause(before.status)
                if header.seq - before.seq - 1 == passed:  # else what they saved was pruned
                    for _ in range(header.epoch - before.epoch - 1):
                        self._resumed(cause, succeeded=False)
            last[header.epoch] = before = header
            passed = 0
        for epoch, cause in causes.items():
            self._resumed(cause, succeeded=last[epoch].status != "failed")
        if before is not None and before.epoch:
            cause = resume_cause(before.status)
            for _ in range(newest_epoch - before.epoch):
                self._resumed(cause, succeeded=cause == "completed")

    def _resumed(self, cause: str, *, succeeded: bool) -> None:
        counts = self.resumes.setdefault(cause, Resumes())
        counts.tried += 1
        counts.succeeded += succeeded


def load_times(reader: Reader, runs: Iterable[RunInfo], most: int = _SAMPLE) -> list[float]:
    """Measure the seconds to load the newest checkpoints of some runs."""
    times: list[float] = []
    for run in runs:
        if len(times) == most:
            break
        started = time.perf_counter()
        newest = reader.newest(run)
        if newest is not None:
            reader.load(newest).state()
            times.append(time.perf_counter() - started)
    return times


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """Median, 95th percentile and largest."""
    ordered = sorted(values)
    return median(ordered), ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)], ordered[-1]
