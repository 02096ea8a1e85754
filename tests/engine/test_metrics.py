"""The figures are right, cheap, bounded, and readable by Prometheus."""

from __future__ import annotations

import json
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from surehold.core.records.record import STATUSES
from surehold.engine.metrics import BUCKETS, SERIES_LIMIT, Metrics, resume_cause


def busy_metrics() -> Metrics:
    """Every figure recorded at least once."""
    metrics = Metrics()
    for seconds in (0.0001, 0.004, 0.004, 0.3, 60.0):
        metrics.saved(seconds, logical=1000, stored=100)
    metrics.save_failed()
    metrics.save_failed(vetoed=True)
    metrics.loaded(0.0025)
    metrics.load_failed()
    metrics.resumed("crash")
    metrics.resumed("crash", succeeded=False)
    metrics.resumed("interrupt")
    metrics.forked()
    metrics.pruned(7)
    metrics.freed(4096)
    metrics.integrity_error()
    metrics.hook_failed(2)
    metrics.redacted("api_key", 3)
    metrics.stepped(0.06)
    metrics.stepped(45.0, failed=True)
    return metrics


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What Prometheus reads in the text."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.prometheus())
        for sample in family.samples
    }


def test_the_snapshot_holds_every_figure_as_plain_values() -> None:
    snapshot = busy_metrics().snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    latency = snapshot.pop("save_seconds")
    assert (latency["count"], latency["max"]) == (5, 60.0)
    assert latency["sum"] == pytest.approx(60.3081)
    assert latency["buckets"]["0.0005"] == 1
    assert latency["buckets"]["0.005"] == 3
    assert latency["buckets"]["10"] == 4
    assert latency["buckets"]["+Inf"] == 5
    assert snapshot.pop("load_seconds")["count"] == 1
    assert snapshot.pop("step_seconds")["buckets"]["0.1"] == 1
    assert snapshot == {
        "saves": {"ok": 5, "failed": 1, "vetoed": 1},
        "loads": {"ok": 1, "failed": 1},
        "steps": {"ok": 1, "failed": 1},
        "resumes": {
            "crash": {"tried": 2, "succeeded": 1},
            "interrupt": {"tried": 1, "succeeded": 1},
        },
        "bytes": {"logical": 5000, "stored": 500},
        "redactions": {"api_key": 3},
        "forks": 1,
        "prunes": 1,
        "forgotten": 7,
        "pruned_bytes": 4096,
        "integrity_errors": 1,
        "hook_failures": 2,
    }


def test_a_snapshot_does_not_change_afterwards() -> None:
    metrics = busy_metrics()
    before = metrics.snapshot()
    kept = json.dumps(before)
    metrics.saved(1.0)
    metrics.redacted("api_key")
    assert json.dumps(before) == kept


def test_prometheus_reads_the_same_figures() -> None:
    read = samples(busy_metrics())

    def value(name: str, **labels: str) -> float:
        return read[f"surehold_{name}", frozenset(labels.items())]

    assert value("saves_total", outcome="ok") == 5
    assert value("saves_total", outcome="vetoed") == 1
    assert value("save_bytes_total", kind="stored") == 500
    assert value("resumes_total", reason="crash", outcome="failed") == 1
    assert value("forgotten_total") == 7
    assert value("pruned_bytes_total") == 4096
    assert value("redactions_total", kind="api_key") == 3
    assert value("save_duration_seconds_count") == 5
    assert value("save_duration_seconds_sum") == pytest.approx(60.3081)
    assert value("save_duration_seconds_bucket", le="0.0005") == 1
    assert value("save_duration_seconds_bucket", le="+Inf") == 5
    assert value("restore_duration_seconds_bucket", le="0.0025") == 1


def test_every_metric_is_documented_typed_and_named_by_the_rules() -> None:
    families = list(text_string_to_metric_families(busy_metrics().prometheus()))
    assert len(families) == 15
    for family in families:
        assert family.name.startswith("surehold_")
        assert family.documentation
        assert family.type in ("counter", "histogram")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        else:
            assert family.name.endswith("_seconds")


def test_what_has_not_happened_yet_is_shown_as_zero() -> None:
    read = samples(Metrics())
    assert read["surehold_saves_total", frozenset({("outcome", "failed")})] == 0
    assert read["surehold_save_duration_seconds_count", frozenset()] == 0


def test_buckets_only_grow_towards_infinity() -> None:
    read = [
        sample.value
        for family in text_string_to_metric_families(busy_metrics().prometheus())
        for sample in family.samples
        if sample.name == "surehold_save_duration_seconds_bucket"
    ]
    assert len(read) == len(BUCKETS) + 1
    assert read == sorted(read)


def test_labels_survive_quotes_backslashes_and_line_ends() -> None:
    metrics = Metrics()
    metrics.redacted('a"b\\c\nd')
    assert samples(metrics)["surehold_redactions_total", frozenset({("kind", 'a"b\\c\nd')})] == 1


def test_labels_cannot_grow_without_bound() -> None:
    metrics = Metrics()
    for number in range(10 * SERIES_LIMIT):
        metrics.redacted(f"kind{number}")
        metrics.resumed(f"cause{number}")
    redactions = metrics.snapshot()["redactions"]
    assert len(redactions) == SERIES_LIMIT + 1
    assert redactions["other"] == 9 * SERIES_LIMIT
    assert sum(redactions.values()) == 10 * SERIES_LIMIT
    resumes = metrics.snapshot()["resumes"]
    assert resumes["other"] == {"tried": 9 * SERIES_LIMIT, "succeeded": 9 * SERIES_LIMIT}


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_has_a_cause(status: str) -> None:
    assert resume_cause(status) != "other"


def test_other_systems_words_for_a_status_have_their_cause_too() -> None:
    assert resume_cause("in_progress") == "crash"
    assert resume_cause("error") == "failure"


def test_no_observation_is_lost_between_threads() -> None:
    metrics = Metrics()

    def work() -> None:
        for _ in range(2000):
            metrics.saved(0.001, logical=3, stored=2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    seen = [metrics.snapshot() for _ in range(50)]
    for thread in threads:
        thread.join()
    for snapshot in [*seen, metrics.snapshot()]:
        count = snapshot["saves"]["ok"]
        assert snapshot["bytes"] == {"logical": 3 * count, "stored": 2 * count}
        assert snapshot["save_seconds"]["count"] == count
    assert metrics.snapshot()["saves"]["ok"] == 16_000


@pytest.mark.figures
def test_an_observation_costs_no_more_than_a_few_calls() -> None:
    metrics = Metrics()

    def seconds_per_call(function: object) -> float:
        assert callable(function)
        best = float("inf")
        for _ in range(7):
            started = time.perf_counter()
            for _ in range(5000):
                function()
            best = min(best, time.perf_counter() - started)
        return best / 5000

    bare = seconds_per_call(lambda: None)
    assert seconds_per_call(lambda: metrics.saved(0.004, logical=10, stored=1)) < 50 * bare
    assert seconds_per_call(metrics.forked) < 20 * bare
