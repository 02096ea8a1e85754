"""The promises of every executor, held to by the threads of this process and by a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.executors.contract import ExecutorContract

from surehold import SQLiteStorage
from surehold.executors import LocalExecutor, Worker, served_by


class OnSQLite(ExecutorContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[SQLiteStorage]:
        with SQLiteStorage(tmp_path / "runs.db") as storage:
            yield storage

    @pytest.fixture
    def log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("SUREHOLD_TEST_LOG", str(tmp_path / "executions"))
        return tmp_path / "executions"


class TestLocalExecutor(OnSQLite):
    sweeps = False

    @pytest.fixture
    def executor(self, storage: SQLiteStorage, log: Path) -> Iterator[LocalExecutor]:
        with LocalExecutor(storage, concurrency=2) as executor:
            yield executor


class WorkerHints:
    """A worker as an executor: what is submitted is offered to it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, run_id: str) -> None:
        self._worker.offer(run_id)

    def cancel(self, run_id: str) -> None:
        self._worker.cancel(run_id)

    def close(self, timeout: float | None = None) -> None:
        self._worker.stop()


class TestWorker(OnSQLite):
    @pytest.fixture
    def executor(self, storage: SQLiteStorage, log: Path) -> Iterator[WorkerHints]:
        worker = Worker(storage, served_by(["tests.executors.counting"]), concurrency=2)
        thread = threading.Thread(target=worker.run)
        thread.start()
        yield WorkerHints(worker)
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()
