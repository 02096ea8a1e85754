"""A run that is past its deadline is cancelled, wherever it is, and cleans up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import Cancelled, CheckpointManager, step, workflow
from surehold.errors import UsageError
from surehold.executors import Worker, handle
from surehold.executors.serving import served_by

done: list[str] = []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    done.clear()
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
def act(name: str) -> None:
    done.append(name)


@workflow
def waits() -> str:
    act("begin")
    try:
        return str(surehold.receive("never"))
    except Cancelled as error:
        act(str(error).rpartition(" is ")[2])
        raise


@workflow
def works() -> None:
    try:
        while True:
            act("work")
            time.sleep(0.002)
    finally:
        act("clean up")


@workflow
async def works_awaited() -> None:
    try:
        while True:
            act("work")
            await asyncio.sleep(0.002)
    finally:
        act("clean up")


def test_a_run_that_waits_in_this_process_is_cancelled(manager: CheckpointManager) -> None:
    result = waits.run(run_id="r", storage=manager, deadline=0.5)
    assert result.status == "cancelled"
    assert done == ["begin", "past its deadline"]
    assert waits.run(run_id="r", storage=manager).status == "cancelled"
    assert len(done) == 2


@pytest.mark.parametrize("job", [works, works_awaited])
def test_a_run_that_works_is_cancelled_at_its_next_call(
    manager: CheckpointManager, job: Any
) -> None:
    result = job.run(run_id="r", storage=manager, deadline=0.3)
    result = asyncio.run(result) if asyncio.iscoroutine(result) else result
    assert result.status == "cancelled"
    assert done[-1] == "clean up" and done.count("clean up") == 1


def test_a_worker_wakes_a_run_at_its_deadline(manager: CheckpointManager) -> None:
    began = time.time()
    waits.start(run_id="r", storage=manager, deadline=3600)
    work(manager)
    entry = manager.storage.entry_of("r")  # type: ignore[attr-defined]
    assert entry.state == "waiting"
    assert entry.due == pytest.approx(began + 3600, abs=600)
    (waiting,) = waits.run(run_id="r", storage=manager, wait=False).waiting
    assert waiting.until is not None and waiting.until > datetime.now(UTC)


def test_a_run_that_resumes_after_its_deadline_cleans_up(manager: CheckpointManager) -> None:
    assert waits.run(run_id="r", storage=manager, wait=False, deadline=600).status == "waiting"
    clock = time.time
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: clock() + 601)
        assert waits.resume("r", storage=manager, wait=False).status == "cancelled"
    assert done == ["begin", "past its deadline"]


def test_a_queued_run_past_its_deadline_executes_nothing(manager: CheckpointManager) -> None:
    waits.start(run_id="r", storage=manager, deadline=0.001)
    time.sleep(0.01)
    work(manager)
    assert handle("r", storage=manager).status() == "cancelled"
    assert done == []


def test_a_run_that_ends_in_time_is_completed(manager: CheckpointManager) -> None:
    @workflow
    def quick() -> str:
        act("once")
        return "ended"

    assert quick.run(run_id="r", storage=manager, deadline=600).value == "ended"
    with pytest.raises(UsageError, match="deadline"):
        quick.run(storage=manager, deadline=0)
    with pytest.raises(UsageError, match="deadline"):
        waits.start(storage=manager, deadline=-1)


def work(manager: CheckpointManager) -> None:
    Worker(manager.storage, served_by([__name__])).run(until_idle=True)
