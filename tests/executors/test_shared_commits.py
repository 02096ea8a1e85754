"""Runs that a worker executes at the same time share an engine and its commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.executors import jobs
from tests.executors.test_worker import HERE, PATIENCE, Running
from tests.servers import postgres

from surehold import SQLiteStorage, Storage
from surehold.engine.commit import engine_of
from surehold.errors import ConflictError
from surehold.executors import Worker, served_by
from surehold.storage.base import Batch
from surehold.storage.postgres import PostgresStorage

THREADS, RUNS, STEPS = 8, 32, 10
_LOOKS, _PAUSE = 50, 0.001


class Rounds:
    """Counts appends, each of which waits until the worker's other threads wait for it.

    So the count does not depend on how fast the machine is.
    """

    def __init__(self, storage: Storage) -> None:
        self.worker: Worker | None = None
        self.appends = 0
        self.batches = 0
        self._queue = engine_of(storage).commits._queue
        self._append = storage.append
        self._lock = threading.Lock()

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        with self._lock:
            self.appends += 1
            self.batches += len(batches)
        assert self.worker is not None
        for _ in range(_LOOKS):
            if len(self._queue) + len(batches) >= self.worker.active:
                break
            time.sleep(_PAUSE)
        return self._append(batches)


@contextmanager
def opened(medium: str, path: Path) -> Iterator[Storage]:
    if medium == "sqlite":
        with SQLiteStorage(path / "runs.db") as storage:
            yield storage
        return
    with PostgresStorage(postgres().url, schema="shared_commits", pool=THREADS) as server:
        yield server


@pytest.mark.parametrize(("medium", "most"), [("sqlite", 0.4), ("postgres", 0.6)])
def test_the_threads_of_a_worker_share_commits(
    medium: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(medium, tmp_path) as storage:
        started = [jobs.ten_steps.start(run_id=f"r{n}", storage=storage) for n in range(RUNS)]
        engine = engine_of(storage)
        rounds = Rounds(storage)
        monkeypatch.setattr(storage, "append", rounds.append)
        rounds.worker = Worker(storage, served_by([HERE]), concurrency=THREADS)
        with Running(rounds.worker):
            for handle in started:
                assert handle.result(timeout=PATIENCE).value == STEPS
        assert rounds.batches == RUNS * (STEPS + 1)
        assert rounds.appends <= most * RUNS * STEPS
        assert engine_of(storage) is engine
