"""A workflow without an end begins anew: its run stays small, and its position is not lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, step, workflow
from surehold.errors import Cancelled, UsageError
from surehold.executors import Worker, cancel, handle
from surehold.executors.serving import served_by
from surehold.storage.base import RecordQuery

done: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
def act(number: int, idempotency_key: str = "") -> int:
    done.append((number, idempotency_key))
    return number + 1


@workflow
def counts(number: int, last: int) -> int:
    if number == last:
        return number
    surehold.continue_as_new(act(number), last)


@workflow
async def counts_async(number: int, last: int) -> int:
    if number == last:
        return number
    surehold.continue_as_new(act(number), last=last)


async def test_a_run_begins_anew_until_it_returns(manager: CheckpointManager) -> None:
    result = counts.run(0, 100, run_id="a", storage=manager)
    assert (result.status, result.returned) == ("completed", 100)
    assert [number for number, _ in done] == [*range(100)]
    assert len({key for _, key in done}) == 100, "each has a key of its own"
    done.clear()
    assert (await counts_async.run(0, 100, run_id="b", storage=manager)).value == 100
    assert [number for number, _ in done] == [*range(100)]


def test_its_records_do_not_grow(manager: CheckpointManager) -> None:
    most = []
    for last in (100, 400):
        counts.run(0, last, run_id=f"to-{last}", storage=manager)
        query = RecordQuery(run_id=f"to-{last}", notes=True)
        most.append(len([*manager.storage.read(f"to-{last}")]))
        assert len([*manager.storage.headers(query)]) <= most[-1]
    assert most[1] <= most[0] + 64 < 400
    assert manager.verify("to-400")[0].problems == ()


def test_it_continues_in_the_generation_that_failed(manager: CheckpointManager) -> None:
    broken = [True]

    @step
    def fails(number: int) -> int:
        done.append(number)
        if number == 50 and broken:
            raise RuntimeError("not yet")
        return number + 1

    @workflow
    def job(number: int) -> int:
        if number == 60:
            return number
        surehold.continue_as_new(fails(number))

    with pytest.raises(RuntimeError):
        job.run(0, run_id="f", storage=manager)
    broken.clear()
    assert job.run(0, run_id="f", storage=manager).value == 60  # as it was begun
    assert done == [*range(51), *range(50, 60)]


def test_messages_and_published_values_outlive_a_generation(manager: CheckpointManager) -> None:
    @workflow
    def adds(total: int) -> int:
        number = surehold.receive("number")
        if number is None:
            return total
        surehold.publish(total=total + number)
        surehold.continue_as_new(total + number)

    adds.run(0, run_id="m", storage=manager, wait=False)
    for number in range(1, 101):
        surehold.send("m", "number", number, storage=manager)
        if number % 30 == 0:
            assert adds.resume("m", storage=manager, wait=False).status == "waiting"
            total = number * (number + 1) // 2
            assert handle("m", storage=manager).status_of() == {"total": total}
    surehold.send("m", "number", storage=manager)
    assert adds.resume("m", storage=manager, wait=False).value == 5050


def test_a_worker_continues_it_and_a_request_ends_it(manager: CheckpointManager) -> None:
    asked = endless.start(run_id="w", storage=manager)
    worker = Worker(manager.storage, served_by([f"{__name__}:endless"]))
    for _ in range(40):
        asked.send("go")
    worker.run(until_idle=True)
    assert asked.status() == "waiting"
    assert len(done) == 40
    asked.send("go")
    cancel("w", storage=manager)
    worker.run(until_idle=True)
    assert asked.status() == "cancelled"
    assert done[-1] == "clean up"


@workflow
def endless(number: int = 0) -> None:
    try:
        surehold.receive("go")
        act(number)
    except Cancelled:
        done.append("clean up")
        raise
    surehold.continue_as_new(number + 1)


async def test_only_the_function_itself_begins_anew(manager: CheckpointManager) -> None:
    with pytest.raises(UsageError):
        surehold.continue_as_new()

    @step
    def inside() -> None:
        surehold.continue_as_new()

    @workflow
    def job() -> None:
        inside()

    with pytest.raises(UsageError, match="itself"):
        job.run(run_id="x", storage=manager)

    @workflow
    def wrong(number: int) -> None:
        surehold.continue_as_new("no", "number")

    with pytest.raises(UsageError, match="too many"):
        wrong.run(1, run_id="y", storage=manager)
