"""A workflow that begins anew for ever stays as small, and is resumed as quickly, as at first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import FULL, times

import surehold
from surehold import CheckpointManager, step, workflow
from surehold.storage.base import RecordQuery

ITERATIONS = times(400, 100_000, "SUREHOLD_TRIALS")
STOPS = (ITERATIONS // 4, ITERATIONS // 2, ITERATIONS)
"""Iterations at which the run fails, and is looked at and resumed."""
LOOKS = 9

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)
stops: list[int] = []
began: list[float] = []


class Stopped(Exception):
    """The run fails here, to be resumed."""


@step
def act(number: int) -> int:
    return number + 1


@workflow
def endless(number: int) -> int:
    began.append(time.perf_counter())
    if number in stops:
        raise Stopped
    surehold.continue_as_new(act(number))


def test_an_endless_run_stays_as_small_as_at_first(
    tmp_path: Path, finding: Callable[..., Any]
) -> None:
    path, seen = tmp_path / "runs.db", []
    for stop in STOPS:
        stops[:] = [stop]
        with CheckpointManager(f"sqlite:///{path}") as manager, pytest.raises(Stopped):
            if stop == STOPS[0]:
                endless.run(0, run_id="endless", storage=manager)
            else:
                endless.resume("endless", storage=manager)
        seen.append(looked(path))
    sizes, records, seconds = zip(*seen, strict=True)
    told = [
        f"at {stop:,}: {size // 1024} KiB, {count} records, resumed in {time * 1e3:.1f} ms"
        for stop, (size, count, time) in zip(STOPS, seen, strict=True)
    ]
    finding("a workflow that begins anew", ITERATIONS, "; ".join(told))
    assert max(records) <= records[0] + 2 * 32 * 4, "old generations are freed"
    assert max(sizes) <= 2 * sizes[0], "their room is used again"
    assert len(seconds) == len(STOPS)


def looked(path: Path) -> tuple[int, int, float]:
    """The bytes of the storage, the records of the run, and the time until its code is called."""
    size, took = path.stat().st_size, []
    with CheckpointManager(f"sqlite:///{path}") as manager:
        records = sum(1 for _ in manager.storage.headers(RecordQuery(run_id="endless", notes=True)))
        for _ in range(LOOKS):
            began.clear()
            start = time.perf_counter()
            with pytest.raises(Stopped):
                endless.resume("endless", storage=manager)
            took.append(began[0] - start)
    return size, records, statistics.median(took)
