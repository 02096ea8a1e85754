"""A process that loses its lease is told so in the same way at every door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import surehold
from surehold import MemoryStorage, StateGraph, step, workflow
from surehold.core.records import Owner
from surehold.doors.graph import CheckpointConfig, GraphConfig
from surehold.errors import ConflictError
from surehold.storage.base import RecordQuery

LEASE = 0.3


def steal(storage: MemoryStorage) -> None:
    """Take the run over, as a process does that finds the lease expired."""
    thief = Owner(host="elsewhere", boot="b", pid=1, started="1")
    storage.take_lease("r", thief, now=time.time() + 3600, ttl=3600)


async def _work(storage: MemoryStorage) -> None:
    steal(storage)
    await asyncio.sleep(30)
    raise AssertionError("it was not told")


async def async_loop(storage: MemoryStorage) -> None:
    async with surehold.run("r", storage=storage, lease_seconds=LEASE) as run:
        run.checkpoint(n=1)
        await _work(storage)


async def async_function(storage: MemoryStorage) -> None:
    @workflow(name="works")
    async def works() -> None:
        await _work(storage)

    await works.run(run_id="r", storage=storage, lease_seconds=LEASE)


async def graph(storage: MemoryStorage) -> None:
    config = GraphConfig(
        name="line", checkpoint=CheckpointConfig(store=storage, interval=1, lease_seconds=LEASE)
    )
    made = StateGraph(config)

    async def work(state: Any) -> None:
        await _work(storage)

    made.add_node("work", work)
    made.set_entry_point("work")
    made.set_exit_point("work")
    await made.run(run_id="r")


@pytest.mark.parametrize("door", [async_loop, async_function, graph])
async def test_code_that_waits_is_stopped_when_the_lease_is_lost(
    door: Callable[[MemoryStorage], Any],
) -> None:
    storage = MemoryStorage()
    with pytest.raises(ConflictError, match="taken over by another process"):
        await asyncio.wait_for(door(storage), 10)
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()
    assert {one.status for one in storage.headers(RecordQuery(run_id="r"))} == {"running"}


def loop(storage: MemoryStorage, made: list[int]) -> None:
    with surehold.run("r", storage=storage, lease_seconds=LEASE) as run:
        run.effect("make", made.append, 1)
        steal(storage)
        run.effect("make", made.append, 2)


def function(storage: MemoryStorage, made: list[int]) -> None:
    @step(in_doubt="ask")
    def make(number: int) -> None:
        made.append(number)

    @workflow(name="works")
    def works() -> None:
        make(1)
        steal(storage)
        make(2)

    works.run(run_id="r", storage=storage, lease_seconds=LEASE)


@pytest.mark.parametrize("door", [loop, function])
def test_code_that_blocks_is_told_by_its_next_call(
    door: Callable[[MemoryStorage, list[int]], Any],
) -> None:
    storage, made = MemoryStorage(), list[int]()
    with pytest.raises(ConflictError, match="taken over by another process"):
        door(storage, made)
    assert made == [1]
    assert {one.status for one in storage.headers(RecordQuery(run_id="r"))} == {"running"}
