"""Counters of one worker, as Prometheus reads them, and the page that serves them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

from surehold.engine.metrics import LONG_BUCKETS, Counter, Histogram, Metrics, exposition, series
from surehold.errors import SureholdError, UsageError
from surehold.storage.queueing import EntryQuery, Queueing

Sample: TypeAlias = tuple[dict[str, str], object]
"""Labels and a value."""

_OUTCOMES = ("completed", "cancelled", "waiting", "interrupted", "failed", "unfit", "lost", "held")
_COUNTED = {
    "claimed": "Runs that it claimed.",
    "dead": "Runs that it made dead letters.",
    "taken_back": "Runs that it took back from workers that died or lost them.",
    "expired": "Old runs that it removed.",
    "storage_errors": "Attempts at runs that the storage failed.",
}
_QUEUES_EVERY = 5.0
"""Seconds for which a reading of the queues is shown."""


class CodeMetrics(Metrics):
    """Figures of the runs of one queue and one code in a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = Counter(
            "worker_runs_total", "Attempts at runs, by their outcome.", ["outcome"], [*_OUTCOMES]
        )
        self._run_seconds = Histogram(
            "worker_run_duration_seconds", "Time of an attempt at a run.", LONG_BUCKETS
        )

    def driven(self, outcome: str, seconds: float) -> None:
        """Count an attempt at a run."""
        with self._lock:
            self._runs.add(1, outcome)
            self._run_seconds.observe(seconds)

    def ended(self, outcome: str) -> int:
        """The attempts with that outcome."""
        with self._lock:
            return self._runs.by_label()[outcome]


class WorkerMetrics:
    """Counts what a worker did since it started, and tells how full its queues are.

    The queues are read when somebody asks, at most every few seconds.
    """

    def __init__(self, queue: Queueing | None = None) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._codes: dict[tuple[str, str], CodeMetrics] = {}
        self._queue = queue
        self._read: tuple[float, list[str]] | None = None

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[name] += number

    def of(self, queue: str, code: str) -> CodeMetrics:
        """The figures of the runs of a queue and a code, ``module:name@version``."""
        with self._lock:
            return self._codes.setdefault((queue, code), CodeMetrics())

    def __getitem__(self, name: str) -> int:
        """A counter, or the number of attempts with an outcome."""
        with self._lock:
            if name in self._counts:
                return self._counts[name]
            return sum(one.ended(name) for one in self._codes.values())

    def text(self, *, active: int) -> str:
        """The metrics in the text format of Prometheus. ``lost`` runs were fenced."""
        with self._lock:
            counts, codes = dict(self._counts), dict(self._codes)
        lines: list[str] = []
        for name, count in counts.items():
            total = f"surehold_worker_{name}_total"
            lines += [f"# HELP {total} {_COUNTED[name]}", f"# TYPE {total} counter"]
            lines.append(f"{total} {count}")
        lines += _gauge("surehold_worker_active", "Runs that it executes.", [({}, active)])
        lines += self._queues()
        pages = [({"queue": queue, "code": code}, one) for (queue, code), one in codes.items()]
        return "".join(f"{line}\n" for line in lines) + exposition(pages)

    def _queues(self) -> list[str]:
        with self._lock:
            known = self._read
        if self._queue is None:
            return []
        if known is None or time.monotonic() - known[0] > _QUEUES_EVERY:
            try:
                lines = [*_up(1), *_of_queues(self._queue)]
            except SureholdError:  # the worker tells of it; a scrape must not fail
                lines = _up(0)
            known = (time.monotonic(), lines)
            with self._lock:
                self._read = known
        return known[1]


def _of_queues(kept: Queueing) -> list[str]:
    runs: list[Sample] = []
    ages: list[Sample] = []
    now = time.time()
    for info in kept.queues():
        states = ("ready", "waiting", "running", "dead", "cancelled")
        runs += [({"queue": info.name, "state": one}, getattr(info, one)) for one in states]
        query = EntryQuery(queue=info.name, state="ready", limit=1)
        first = next(iter(kept.entries(query)), None) if info.ready else None
        age = 0.0 if first is None else max(now - first.rank, 0.0)
        ages.append(({"queue": info.name}, f"{age:.3f}"))
    return [
        *_gauge("surehold_queue_runs", "Runs of a queue by state; dead are dead letters.", runs),
        *_gauge(
            "surehold_queue_oldest_ready_seconds",
            "Time that the run which starts next is ready: the oldest of the highest priority.",
            ages,
        ),
    ]


def _up(value: int) -> list[str]:
    text = "1 if the storage answered when its queues were read last."
    return _gauge("surehold_storage_up", text, [({}, value)])


def _gauge(name: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
    return lines + [series(name, labels, value) for labels, value in samples]


def serve_metrics(
    host: str, port: int, *, metrics: Callable[[], str], is_healthy: Callable[[], bool]
) -> ThreadingHTTPServer:
    """Serve ``/healthz`` and ``/metrics`` from a thread; see `server_address`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._give(200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif self.path == "/healthz":
                healthy = is_healthy()
                self._give(200 if healthy else 503, "ok\n" if healthy else "stuck\n", "text/plain")
            else:
                self._give(404, "no such page\n", "text/plain")

        def _give(self, code: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the worker's log is one line per event of its own."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UsageError(
            f"the worker cannot listen on {host} port {port}: {error.strerror or error}",
            hint="take another port, or port 0 for any that is free",
        ) from error
    threading.Thread(target=server.serve_forever, name="surehold-metrics", daemon=True).start()
    return server
