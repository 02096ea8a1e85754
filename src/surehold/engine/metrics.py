"""Figures for operators: saves, loads, resumes and refusals, their size and time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from surehold.core.records import read_status

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency histograms, in seconds."""
LONG_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
"""The same for what user code does: steps and runs."""

SERIES_LIMIT = 64
"""The most values that labels of one metric take; what comes later is counted as ``other``."""

Labels = tuple[str, ...]

_CAUSES = {
    "running": "crash",
    "interrupted": "interrupt",
    "waiting": "wait",
    "failed": "failure",
    "stalled": "stall",
    "completed": "completed",
    "cancelled": "cancelled",
    "max_rounds_reached": "limit",
    "max_cycles_reached": "limit",
    "budget_exhausted": "limit",
}


def resume_cause(status: str) -> str:
    """Return why a run is resumed, from the status of its newest checkpoint.

    >>> resume_cause("running"), resume_cause("budget_exhausted"), resume_cause("mine")
    ('crash', 'limit', 'other')
    """
    return _CAUSES.get(read_status(status), "other")


class MetricSet:
    """Metrics that are read together: those that a subclass has as attributes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Start with a free lock in the child of a fork."""
        self._lock = threading.Lock()

    def families(self, labels: Mapping[str, str]) -> Iterator[tuple[str, str, list[str]]]:
        """The name of each metric, its two lines of comment, and its series with *labels*."""
        with self._lock:
            for metric in vars(self).values():
                if isinstance(metric, Counter | Histogram):
                    name = metric.name
                    about = f"# HELP {name} {metric.text}\n# TYPE {name} {metric.type}"
                    yield name, about, [*metric.lines(labels)]


class Metrics(MetricSet):
    """Counters and histograms of one process; thread-safe.

    >>> metrics = Metrics()
    >>> metrics.saved(0.004, logical=2048, stored=160)
    >>> metrics.resumed("crash")
    >>> metrics.snapshot()["saves"], metrics.snapshot()["resumes"]
    ({'ok': 1, 'failed': 0, 'vetoed': 0}, {'crash': {'tried': 1, 'succeeded': 1}})
    >>> print(metrics.prometheus().splitlines()[2])
    surehold_saves_total{outcome="ok"} 1
    """

    def __init__(self) -> None:
        super().__init__()
        self._saves = Counter(
            "saves_total", "Saves tried.", ["outcome"], ["ok", "failed", "vetoed"]
        )
        self._save_seconds = Histogram("save_duration_seconds", "Time until a save was durable.")
        self._bytes = Counter(
            "save_bytes_total",
            "Bytes of the states that were saved, and of what was stored for them.",
            ["kind"],
            ["logical", "stored"],
        )
        self._loads = Counter("loads_total", "Loads tried.", ["outcome"], ["ok", "failed"])
        self._load_seconds = Histogram("restore_duration_seconds", "Time to load a checkpoint.")
        self._resumes = Counter(
            "resumes_total", "Resumes tried, by what had ended the run.", ["reason", "outcome"]
        )
        self._forks = Counter("forks_total", "Runs forked.")
        self._prunes = Counter("prunes_total", "Prunes that removed something.")
        self._forgotten = Counter("forgotten_total", "Checkpoints removed by retention.")
        self._freed = Counter("pruned_bytes_total", "Stored bytes freed by prunes.")
        self._corrupt = Counter(
            "integrity_errors_total", "Records found damaged, missing or out of place."
        )
        self._hooks = Counter("hook_failures_total", "Hooks that raised, hung or failed.")
        self._redactions = Counter("redactions_total", "Secrets replaced before a save.", ["kind"])
        self._steps = Counter(
            "steps_total",
            "Recorded calls made: steps, effects, calls of models and tools.",
            ["outcome"],
            ["ok", "failed"],
        )
        self._step_seconds = Histogram(
            "step_duration_seconds", "Time of a recorded call until its outcome.", LONG_BUCKETS
        )

    def saved(self, seconds: float, logical: int = 0, stored: int = 0) -> None:
        """A save is durable: a state of *logical* bytes took *stored*."""
        saves, sizes = self._saves.values, self._bytes.values
        with self._lock:
            saves["ok",] += 1
            sizes["logical",] += logical
            sizes["stored",] += stored
            self._save_seconds.observe(seconds)

    def save_failed(self, *, vetoed: bool = False) -> None:
        """A save raised, or a hook refused it."""
        with self._lock:
            self._saves.add(1, "vetoed" if vetoed else "failed")

    def loaded(self, seconds: float) -> None:
        """A checkpoint was loaded."""
        with self._lock:
            self._loads.add(1, "ok")
            self._load_seconds.observe(seconds)

    def load_failed(self) -> None:
        """A load raised."""
        with self._lock:
            self._loads.add(1, "failed")

    def resumed(self, cause: str, *, succeeded: bool = True) -> None:
        """A resume was tried; see `resume_cause`."""
        with self._lock:
            self._resumes.add(1, cause, "ok" if succeeded else "failed")

    def forked(self) -> None:
        """A run was forked."""
        with self._lock:
            self._forks.add(1)

    def pruned(self, checkpoints: int) -> None:
        """A prune removed so many checkpoints."""
        with self._lock:
            self._prunes.add(1)
            self._forgotten.add(checkpoints)

    def freed(self, stored: int) -> None:
        """Count stored bytes that a prune freed."""
        with self._lock:
            self._freed.add(stored)

    def integrity_error(self) -> None:
        """Something stored was found damaged."""
        with self._lock:
            self._corrupt.add(1)

    def hook_failed(self, count: int = 1) -> None:
        """Hooks raised, hung or failed."""
        with self._lock:
            self._hooks.add(count)

    def redacted(self, kind: str, count: int = 1) -> None:
        """Secrets of a kind were replaced before a save."""
        with self._lock:
            self._redactions.add(count, kind)

    def stepped(self, seconds: float, *, failed: bool = False) -> None:
        """A recorded call was made, and has an outcome."""
        with self._lock:
            self._steps.add(1, "failed" if failed else "ok")
            self._step_seconds.observe(seconds)

    def snapshot(self) -> dict[str, Any]:
        """All figures at one moment, as plain values.

        ``saves``, ``loads`` and ``steps`` by outcome; ``resumes`` by cause, each ``tried`` and
        ``succeeded``; ``bytes`` ``logical`` and ``stored``; ``save_seconds``, ``load_seconds`` and
        ``step_seconds`` with ``count``, ``sum``, ``max`` and ``buckets`` (how many took at most so
        long); ``redactions`` by kind;
        and the plain numbers ``forks``, ``prunes``, ``forgotten``, ``pruned_bytes``,
        ``integrity_errors``, ``hook_failures``.
        """
        with self._lock:
            resumes: dict[str, dict[str, int]] = {}
            for (cause, outcome), count in self._resumes.values.items():
                entry = resumes.setdefault(cause, {"tried": 0, "succeeded": 0})
                entry["tried"] += count
                entry["succeeded"] += count if outcome == "ok" else 0
            return {
                "saves": self._saves.by_label(),
                "loads": self._loads.by_label(),
                "steps": self._steps.by_label(),
                "resumes": resumes,
                "bytes": self._bytes.by_label(),
                "save_seconds": self._save_seconds.figures(),
                "load_seconds": self._load_seconds.figures(),
                "step_seconds": self._step_seconds.figures(),
                "redactions": self._redactions.by_label(),
                "forks": self._forks.values[()],
                "prunes": self._prunes.values[()],
                "forgotten": self._forgotten.values[()],
                "pruned_bytes": self._freed.values[()],
                "integrity_errors": self._corrupt.values[()],
                "hook_failures": self._hooks.values[()],
            }

    def prometheus(self) -> str:
        """All figures in Prometheus' text format (``text/plain; version=0.0.4``)."""
        return exposition([({}, self)])


def exposition(every: Iterable[tuple[Mapping[str, str], MetricSet]]) -> str:
    """Several sets of metrics, each with its labels, as a page for Prometheus."""
    pages: dict[str, list[str]] = {}
    for labels, metrics in every:
        for name, about, lines in metrics.families(labels):
            pages.setdefault(name, [about]).extend(lines)
    return "".join(f"{line}\n" for page in pages.values() for line in page)


def series(name: str, labels: Mapping[str, str], value: object) -> str:
    """One line of that page."""
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


class Counter:
    type = "counter"

    def __init__(
        self, name: str, text: str, labels: list[str] | None = None, known: list[str] | None = None
    ) -> None:
        self.name = f"surehold_{name}"
        self.text = text
        self._labels = labels or []
        first: list[Labels] = [(value,) for value in known or ()] if labels else [()]
        self.values: dict[Labels, int] = dict.fromkeys(first, 0)

    def add(self, count: int, *labels: str) -> None:
        if labels not in self.values and len(self.values) >= SERIES_LIMIT:
            labels = ("other", *labels[1:])
        self.values[labels] = self.values.get(labels, 0) + count

    def by_label(self) -> dict[str, int]:
        return {labels[0]: count for labels, count in self.values.items()}

    def lines(self, labels: Mapping[str, str]) -> Iterator[str]:
        for values, count in self.values.items():
            own = dict(zip(self._labels, values, strict=True))
            yield series(self.name, {**labels, **own}, count)


class Histogram:
    type = "histogram"

    def __init__(self, name: str, text: str, bounds: tuple[float, ...] = BUCKETS) -> None:
        self.name = f"surehold_{name}"
        self.text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._max = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds
        self._max = max(self._max, seconds)

    def _buckets(self) -> dict[str, int]:
        bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        below = 0
        made = {}
        for bound, count in zip(bounds, self._counts, strict=True):
            below += count
            made[bound] = below
        return made

    def figures(self) -> dict[str, Any]:
        count = sum(self._counts)
        return {"count": count, "sum": self._sum, "max": self._max, "buckets": self._buckets()}

    def lines(self, labels: Mapping[str, str]) -> Iterator[str]:
        for bound, count in self._buckets().items():
            yield series(f"{self.name}_bucket", {**labels, "le": bound}, count)
        yield series(f"{self.name}_sum", labels, repr(self._sum))
        yield series(f"{self.name}_count", labels, sum(self._counts))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
