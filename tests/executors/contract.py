"""The promises of every executor; a subclass hands in an executor and the storage it serves."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from tests.executors.counting import STEPS, ask, count, expected, fail, linger, rest

from surehold import Storage
from surehold.executors import Executor

PATIENCE = 120.0
"""Seconds that a busy machine may take for what takes one."""


class ExecutorContract:
    """Subclasses give the fixtures `storage`, `executor` and `log`, the file of executions."""

    sweeps = True
    """False if runs that were never submitted stay where they are."""

    @pytest.fixture
    def run_id(self) -> str:
        return f"run-{uuid.uuid4().hex[:8]}"

    def test_a_submitted_run_completes(
        self, executor: Executor, storage: Storage, run_id: str
    ) -> None:
        handle = count.start(7, run_id=run_id, storage=storage)
        executor.submit(run_id)
        assert handle.result(PATIENCE).value == expected(7)

    def test_a_doubled_submission_executes_nothing_twice(
        self, executor: Executor, storage: Storage, run_id: str, log: Path
    ) -> None:
        handle = count.start(8, run_id=run_id, storage=storage)
        for _ in range(5):
            executor.submit(run_id)
        handle.result(PATIENCE)
        executor.submit(run_id)
        assert executions(log, run_id) == list(range(1, STEPS + 1))

    def test_a_lost_submission_is_found(
        self, executor: Executor, storage: Storage, run_id: str
    ) -> None:
        if not self.sweeps:
            pytest.skip("it executes what it is given")
        handle = count.start(9, run_id=run_id, storage=storage)
        assert handle.result(PATIENCE).value == expected(9)

    def test_a_run_that_sleeps_continues_when_it_is_due(
        self, executor: Executor, storage: Storage, run_id: str, log: Path
    ) -> None:
        began = time.monotonic()
        handle = rest.start(1.0, run_id=run_id, storage=storage)
        executor.submit(run_id)
        until(lambda: handle.status() != "running")  # a busy machine may see it waiting or not
        assert handle.result(PATIENCE).status == "completed"
        assert time.monotonic() - began >= 1.0
        assert executions(log, run_id) == [1, 2]

    def test_a_run_that_was_answered_continues(
        self, executor: Executor, storage: Storage, run_id: str, log: Path
    ) -> None:
        handle = ask.start(3, run_id=run_id, storage=storage)
        executor.submit(run_id)
        until(lambda: handle.status() == "waiting")
        handle.answer("go", 4)
        if not self.sweeps:
            executor.submit(run_id)
        assert handle.result(PATIENCE).status == "completed"
        assert executions(log, run_id) == [1, 2]

    def test_a_failure_is_saved(self, executor: Executor, storage: Storage, run_id: str) -> None:
        handle = fail.start("no luck", run_id=run_id, storage=storage)
        executor.submit(run_id)
        until(lambda: handle.status() == "failed")

    def test_a_cancelled_run_stops_at_its_next_step(
        self, executor: Executor, storage: Storage, run_id: str, log: Path
    ) -> None:
        handle = linger.start(2000, run_id=run_id, storage=storage)
        executor.submit(run_id)
        until(lambda: executions(log, run_id))
        handle.cancel()
        executor.cancel(run_id)
        until(lambda: handle.status() == "cancelled")
        assert len(executions(log, run_id)) < 2000


def until(condition, seconds: float = PATIENCE) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def executions(log: Path, run_id: str) -> list[int]:
    """The numbers of the steps of a run that were executed, in order."""
    import json

    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [number for event, run, number, *_ in lines if event == "begin" and run == run_id]
