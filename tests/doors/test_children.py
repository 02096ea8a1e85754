"""A run that another one begins is begun once, whatever happens to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, step, workflow
from surehold.executors import Worker, handle
from surehold.executors.serving import served_by
from surehold.storage.base import RunQuery

PLACE: list[Any] = []
broken: list[bool] = []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        PLACE[:], broken[:] = [made], [True]
        yield made


@workflow
def double(number: int) -> int:
    return 2 * number


@step
def result_of(run_id: str) -> int:
    found: int = handle(run_id, storage=PLACE[0]).result(20).value
    return found


@workflow
def fans_out(numbers: int) -> int:
    begun = [double.start(number, storage=PLACE[0]).run_id for number in range(numbers)]
    if broken:
        raise RuntimeError("not yet")
    return sum(result_of(run_id) for run_id in begun)


@workflow
async def fans_out_async(numbers: int) -> list[str]:
    begun = [double.start(number, storage=PLACE[0]) for number in range(numbers)]
    if broken:
        raise RuntimeError("not yet")
    return [one.run_id for one in begun]


def test_a_replay_begins_no_child_again(manager: CheckpointManager) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError):
            fans_out.run(20, run_id="p", storage=manager)
    broken.clear()
    children = [*manager.storage.runs(RunQuery(name="double"))]
    assert len(children) == 20
    assert all(run.run_id.startswith("p.double-") for run in children)
    Worker(manager.storage, served_by([f"{__name__}:double"])).run(until_idle=True)
    assert fans_out.resume("p", storage=manager).value == 2 * sum(range(20))


async def test_children_of_async_code_are_begun_once(manager: CheckpointManager) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await fans_out_async.run(5, run_id="p", storage=manager)
    broken.clear()
    result = await fans_out_async.resume("p", storage=manager)
    assert len({*result.value}) == 5
    runs = await asyncio.to_thread(lambda: [*manager.storage.runs(RunQuery(name="double"))])
    assert {run.run_id for run in runs} == {*result.value}


def test_elsewhere_each_start_is_a_run_of_its_own(manager: CheckpointManager) -> None:
    first, second = (double.start(1, storage=manager) for _ in range(2))
    assert first.run_id != second.run_id
    assert surehold.pending(storage=manager) == []
