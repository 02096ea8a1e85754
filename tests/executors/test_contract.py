"""The promises of every executor, held to by the one of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.executors.contract import ExecutorContract

from holdfast import SQLiteStorage
from holdfast.executors import LocalExecutor


class TestLocalExecutor(ExecutorContract):
    sweeps = False

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[SQLiteStorage]:
        with SQLiteStorage(tmp_path / "runs.db") as storage:
            yield storage

    @pytest.fixture
    def log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HOLDFAST_TEST_LOG", str(tmp_path / "executions"))
        return tmp_path / "executions"

    @pytest.fixture
    def executor(self, storage: SQLiteStorage, log: Path) -> Iterator[LocalExecutor]:
        with LocalExecutor(storage, concurrency=2) as executor:
            yield executor
