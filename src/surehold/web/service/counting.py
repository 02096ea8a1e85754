"""Figures of the requests, as Prometheus reads them."""

from __future__ import annotations

from surehold.engine.metrics import LONG_BUCKETS, Counter, Histogram, MetricSet


class RequestMetrics(MetricSet):
    """Counts requests by their name and status, and times them; thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = Counter(
            "http_requests_total", "Requests that were answered.", ["request", "status"]
        )
        self._seconds = Histogram(
            "http_request_duration_seconds", "Time until the answer began.", LONG_BUCKETS
        )

    def answered(self, request: str, status: int, seconds: float) -> None:
        """Count an answer."""
        with self._lock:
            self._requests.add(1, request, str(status))
            self._seconds.observe(seconds)
