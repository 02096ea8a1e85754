"""Blame reads a run once, however many checkpoints appended to the list it asks about."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import CheckpointManager, SQLiteStorage, State


def saved(manager: CheckpointManager, steps: int) -> list[str]:
    state = State.new({"messages": [], "n": 0}, run_id="r")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("messages", {"text": f"message {step}"}).at(step=step)
        ids.append(manager.save_checkpoint(state))
    return ids


def cost(manager: CheckpointManager, path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many states blame loads, and how many times it reads the storage."""
    loads, reads = [0], [0]
    load, read = manager.reader.load, manager.storage.read
    with monkeypatch.context() as patch:

        def counted_load(header: object) -> object:
            loads[0] += 1
            return load(header)  # type: ignore[arg-type]

        def counted_read(*args: object, **options: object) -> object:
            reads[0] += 1
            return read(*args, **options)  # type: ignore[arg-type]

        patch.setattr(manager.reader, "load", counted_load)
        patch.setattr(manager.storage, "read", counted_read)
        manager.blame("r", path)
    return loads[0], reads[0]


def test_blame_loads_one_state_whatever_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (50, 600):
        with SQLiteStorage(tmp_path / f"{steps}.db") as storage:
            manager = CheckpointManager(storage)
            ids = saved(manager, steps)
            loads, reads = cost(manager, "/messages/0/text", monkeypatch)
            assert loads == 1
            assert reads <= 3 + steps // 100
            for index in (0, 7, steps - 1):
                blamed = manager.blame("r", f"/messages/{index}")
                assert blamed is not None and blamed.checkpoint_id == ids[index]


def test_blame_follows_lists_that_shrink_are_replaced_and_branch(tmp_path: Path) -> None:
    manager = CheckpointManager("memory://")
    state = State.new({"l": [0, 1, 2]}, run_id="r")
    first = manager.save_checkpoint(state)
    state = state.append("l", 3).at(step=1)
    second = manager.save_checkpoint(state)
    state = state.set("l", [0, 1, 3]).at(step=2)
    third = manager.save_checkpoint(state)
    state = state.append("l", 4).at(step=3)
    fourth = manager.save_checkpoint(state)
    found = [manager.blame("r", f"/l/{index}") for index in range(4)]
    ids = [one.checkpoint_id for one in found if one is not None]
    assert len(ids) == 4 and ids[3] == fourth
    assert ids[0] in (first, third) and ids[2] == third
    assert second not in ids
