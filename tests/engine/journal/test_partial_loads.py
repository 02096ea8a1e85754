"""Loading only what is asked for, and not reading again what was read lately."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from surehold import AgentState, AsyncCheckpointManager, CheckpointManager, MemoryStorage, State
from surehold.core.records import Record
from surehold.core.values import codec, patch
from surehold.engine.journal import reader
from surehold.errors import NotFoundError, UsageError


@pytest.fixture
def manager() -> CheckpointManager:
    return CheckpointManager(MemoryStorage())


def fill(manager: CheckpointManager, steps: int = 20) -> list[str]:
    state = State.new({"log": [], "big": {"text": "x" * 10_000}, "n": 0}, run_id="run")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("log", step).set("n", step).at(step=step)
        if step % 3 == 0:
            state = state.set("big", {"text": "y" * (10_000 + step)})
        ids.append(manager.save_checkpoint(state))
    return ids


def test_keys_give_the_values_that_the_whole_state_has(manager: CheckpointManager) -> None:
    ids = fill(manager)
    for checkpoint_id in ids:
        whole = CheckpointManager(manager.storage).load_checkpoint(checkpoint_id)
        assert isinstance(whole, State)
        fresh = CheckpointManager(manager.storage)
        some = fresh.load_checkpoint(checkpoint_id, keys=["n", "log"])
        assert some == {"n": whole["n"], "log": list(whole["log"])}
        assert fresh.load_checkpoint(checkpoint_id, keys=["big"]) == {"big": dict(whole["big"])}
        assert fresh.load_checkpoint(checkpoint_id, keys=[]) == {}


def test_what_is_not_asked_for_is_not_decoded(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = fill(manager)[-1]
    decoded: list[bytes] = []

    def seen(text: bytes, *words: Any, **options: Any) -> Any:
        decoded.append(text)
        return whole(text, *words, **options)

    whole = codec.parse
    for module in (codec, patch):
        monkeypatch.setattr(module, "parse", seen)
    fresh = CheckpointManager(manager.storage)
    assert fresh.load_checkpoint(newest, keys=["n"]) == {"n": 20}
    assert all(len(text) < 100 for text in decoded)


def test_a_key_that_is_not_there_is_named(manager: CheckpointManager) -> None:
    newest = fill(manager, 1)[-1]
    with pytest.raises(NotFoundError, match="no 'plan'") as told:
        manager.load_checkpoint(newest, keys=["n", "plan"])
    assert "there is: log, big, n" in str(told.value)
    with pytest.raises(UsageError, match="string"):
        manager.load_checkpoint(newest, keys="n")


def test_an_agents_values_are_loaded_alone_and_awaited() -> None:
    async def main() -> dict[str, Any]:
        async with AsyncCheckpointManager("memory://") as manager:
            state = AgentState(agent_id="a", memory_contents={"goal": "kelp"})
            saved = await manager.save_checkpoint(state)
            return await manager.load_checkpoint(saved, keys=["memory_contents"])

    assert asyncio.run(main()) == {"memory_contents": {"goal": "kelp"}}


class Counting(MemoryStorage):
    reads = 0

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        self.reads += 1
        return super().read(run_id, first=first, last=last)


def test_a_state_that_was_read_lately_is_not_read_again() -> None:
    storage = Counting()
    ids = fill(CheckpointManager(storage))
    manager = CheckpointManager(storage)
    first = manager.load_checkpoint(ids[-1])
    before = storage.reads
    assert manager.load_checkpoint(ids[-1]) == first
    assert manager.load_checkpoint(ids[-1], keys=["n"]) == {"n": 20}
    assert storage.reads == before
    manager.delete_checkpoint(ids[-1])
    with pytest.raises(NotFoundError):
        manager.load_checkpoint(ids[-1])


def test_states_of_one_checkpoint_do_not_share_what_can_be_changed() -> None:
    manager = CheckpointManager("memory://")
    saved = manager.save_checkpoint(AgentState(agent_id="a", memory_contents={"seen": []}))
    one, two = manager.load_checkpoint(saved), manager.load_checkpoint(saved)
    assert isinstance(one, AgentState) and isinstance(two, AgentState)
    one.memory_contents["seen"].append(1)
    assert two.memory_contents == {"seen": []}
    assert manager.load_checkpoint(saved, keys=["memory_contents"])["memory_contents"] == {
        "seen": []
    }


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_CACHED_BYTES", 60_000)
    storage = MemoryStorage()
    ids = fill(CheckpointManager(storage))
    manager = CheckpointManager(storage)
    for checkpoint_id in ids:
        manager.load_checkpoint(checkpoint_id)
    kept = manager.reader._loaded
    assert 0 < len(kept) < 6
    assert sum(loaded.weight for loaded in kept.values()) == manager.reader._loaded_bytes <= 60_000
