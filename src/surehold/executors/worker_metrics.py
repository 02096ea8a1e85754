"""Counters of one worker, as Prometheus reads them, and the page that serves them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from surehold.errors import UsageError

_OUTCOMES = ("completed", "waiting", "interrupted", "failed", "unfit", "lost", "held")


class WorkerMetrics:
    """Counts what a worker did since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    def count(self, name: str) -> None:
        """Add one."""
        with self._lock:
            self._counts[name] += 1

    def driven(self, outcome: str, seconds: float) -> None:
        """Count one drive of a run."""
        with self._lock:
            self._counts[outcome] += 1
            self._seconds += seconds

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def text(self, *, active: int) -> str:
        """The metrics in the text format of Prometheus. ``lost`` runs were fenced."""
        with self._lock:
            counts, seconds = Counter(self._counts), self._seconds
        lines = ["# TYPE surehold_worker_runs_total counter"]
        lines += [
            f'surehold_worker_runs_total{{outcome="{one}"}} {counts[one]}' for one in _OUTCOMES
        ]
        for name in ("claimed", "dead", "taken_back", "storage_errors"):
            lines += [
                f"# TYPE surehold_worker_{name}_total counter",
                f"surehold_worker_{name}_total {counts[name]}",
            ]
        lines += [
            "# TYPE surehold_worker_run_seconds_total counter",
            f"surehold_worker_run_seconds_total {seconds:.6f}",
            "# TYPE surehold_worker_active gauge",
            f"surehold_worker_active {active}",
        ]
        return "\n".join(lines) + "\n"


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
