"""The page of figures that a worker serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.executors import jobs

from surehold import MemoryStorage
from surehold.errors import StorageUnavailableError
from surehold.executors import Worker, served_by
from surehold.executors.worker_metrics import WorkerMetrics

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]
CODE = f"{jobs.__name__}:doubled@1"


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    with MemoryStorage() as storage:
        yield storage


def read(text: str) -> Figures:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(figures: Figures, name: str, **labels: str) -> float:
    return figures[f"surehold_{name}", frozenset(labels.items())]


def test_runs_and_steps_are_counted_by_queue_and_code(storage: MemoryStorage) -> None:
    for number in range(3):
        jobs.doubled.start([number], storage=storage, queue="mail")
    worker = Worker(storage, served_by([jobs.__name__]), queues=("mail",))
    worker.run(until_idle=True)
    figures = read(worker.metrics.text(active=0))
    at = {"queue": "mail", "code": CODE}
    assert value(figures, "worker_runs_total", outcome="completed", **at) == 3
    assert value(figures, "worker_run_duration_seconds_count", **at) == 3
    assert value(figures, "steps_total", outcome="ok", **at) == 3
    assert value(figures, "step_duration_seconds_bucket", le="+Inf", **at) == 3
    assert value(figures, "saves_total", outcome="ok", **at) >= 3


def test_queues_are_counted_by_state_with_the_age_of_the_next_run(storage: MemoryStorage) -> None:
    for _ in range(2):
        jobs.doubled.start([1], storage=storage)
    jobs.doubled.start([1], storage=storage, delay=600)
    figures = read(WorkerMetrics(storage).text(active=0))
    assert value(figures, "queue_runs", queue="default", state="ready") == 2
    assert value(figures, "queue_runs", queue="default", state="waiting") == 1
    assert value(figures, "queue_runs", queue="default", state="dead") == 0
    assert 0 <= value(figures, "queue_oldest_ready_seconds", queue="default") < 60
    assert value(figures, "storage_up") == 1


def test_a_storage_that_fails_is_told_and_fails_no_scrape() -> None:
    class Away(MemoryStorage):
        def queues(self) -> list:  # type: ignore[type-arg]
            raise StorageUnavailableError("away")

    with Away() as storage:
        figures = read(WorkerMetrics(storage).text(active=2))
    assert value(figures, "storage_up") == 0
    assert value(figures, "worker_active") == 2
    assert not any(name == "surehold_queue_runs" for name, _ in figures)
