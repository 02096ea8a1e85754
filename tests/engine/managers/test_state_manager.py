"""What is particular to the awaited manager: group commit, cancellation, closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surehold import MemoryStorage, State, StateManager
from surehold.errors import ConflictError, StorageFullError, UsageError
from surehold.storage.base import Batch


class Watched(MemoryStorage):
    """A memory that counts its appends, and holds them up while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.threads: set[str] = set()

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self.gate.wait()
        self.threads.add(threading.current_thread().name)
        if self.failure is not None:
            raise self.failure
        self.appends.append(len(batches))
        return super().append(batches)


async def save_steps(manager: StateManager, run_id: str, count: int) -> State:
    state = State.new({"n": 0}, run_id=run_id)
    for step in range(1, count + 1):
        state = state.set("n", step).at(step=step)
        await manager.save_checkpoint(state)
    return state


async def test_saves_that_are_awaited_together_share_a_commit() -> None:
    storage = Watched()
    async with StateManager(storage) as manager:
        await asyncio.gather(*(save_steps(manager, f"r{n}", 10) for n in range(64)))
        assert sum(storage.appends) == 640
        assert len(storage.appends) <= 640 / 8
        for n in range(64):
            assert (await manager.resume_from_latest(f"r{n}"))["n"] == 10
        assert all(await manager.verify())
    assert storage.threads == {"surehold-writer"}


async def test_each_of_a_group_fails_or_succeeds_alone() -> None:
    storage = MemoryStorage()
    first, second = StateManager(storage), StateManager(storage)
    await save_steps(first, "taken", 1)
    stale = await second.resume_from_latest("taken")
    await first.save_checkpoint((await first.resume_from_latest("taken")).at(step=2))
    results = await asyncio.gather(
        second.save_checkpoint(stale.set("n", 7).at(step=2)),
        second.save_checkpoint(State.new({"n": 1}, run_id="free")),
        second.save_checkpoint(State.new({"n": 2}, run_id="also-free")),
        return_exceptions=True,
    )
    assert isinstance(results[0], ConflictError)
    assert all(isinstance(result, str) for result in results[1:])
    for manager in (first, second):
        await manager.close()


async def test_a_failure_of_the_medium_reaches_all_of_a_group() -> None:
    storage = Watched()
    async with StateManager(storage) as manager:
        storage.failure = StorageFullError("no room")
        results = await asyncio.gather(
            *(save_steps(manager, f"r{n}", 1) for n in range(4)), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageFullError] * 4
        storage.failure = None
        await asyncio.gather(*(save_steps(manager, f"r{n}", 1) for n in range(4)))


async def test_a_cancelled_save_ends_only_when_its_append_has_settled() -> None:
    storage = Watched()
    async with StateManager(storage) as manager:
        storage.gate.clear()
        task = asyncio.create_task(manager.save_checkpoint(State.new({"n": 1}, run_id="r")))
        await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.02)
            assert not done
        storage.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await manager.resume_from_latest("r"))["n"] == 1


async def test_closing_finishes_what_is_being_saved() -> None:
    storage = Watched()
    manager = StateManager(storage)
    storage.gate.clear()
    saves = [asyncio.create_task(save_steps(manager, f"r{n}", 1)) for n in range(5)]
    await asyncio.sleep(0.01)
    storage.gate.set()
    await manager.close()
    await asyncio.gather(*saves)
    assert sum(storage.appends) == 5
    with pytest.raises(UsageError, match="closed"):
        await manager.latest("r0")
    await manager.close()


async def test_the_event_loop_is_free_while_a_save_waits_for_the_disk() -> None:
    storage = Watched()
    async with StateManager(storage) as manager:
        storage.gate.clear()
        task = asyncio.create_task(save_steps(manager, "r", 1))
        turns = 0
        while turns < 100:
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        storage.gate.set()
        await task


def test_one_manager_serves_several_event_loops_in_turn(tmp_path: Path) -> None:
    manager: Any = None

    async def first() -> None:
        nonlocal manager
        manager = StateManager(f"sqlite:///{tmp_path}/a.db")
        await save_steps(manager, "r", 3)

    async def second() -> None:
        assert (await manager.resume_from_latest("r"))["n"] == 3
        await manager.close()

    asyncio.run(first())
    asyncio.run(second())
