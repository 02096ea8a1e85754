"""Figures from a storage's headers: bytes by kind and run, resumes, step times."""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median

import msgspec

from surehold.core.records import Header
from surehold.engine.journal import Reader
from surehold.engine.metrics import resume_cause
from surehold.storage.base import Leasing, RecordQuery, RunInfo, is_live

_SAMPLE = 20


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
        lease = storage.lease_of(run.run_id) if isinstance(storage, Leasing) else None
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
                    self._resumed(cause, succeeded=cause == "completed")

    def _resumed(self, cause: str, *, succeeded: bool) -> None:
        counts = self.resumes.setdefault(cause, ResumeStats(cause, 0, 0, 0))
        counts.tried += 1
        counts.succeeded += succeeded
        counts.failed += not succeeded


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
