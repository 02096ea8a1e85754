"""Damage is contained: one record costs the checkpoints up to the next keyframe, never the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.crash.media import open_medium
from tests.engine.repair.test_recovery import damage

from surehold import CheckpointManager, MemoryStorage, State
from surehold.engine.journal import append
from surehold.errors import CorruptError, NotFoundError
from surehold.storage.base import RecordQuery, Storage

MOST = 8
STEPS = 28


def fill(storage: Storage, steps: int, content: int = 40_000) -> list[str]:
    """Save a state so large that no keyframe is due by weight."""
    manager = CheckpointManager(storage)
    state = State.new({"big": "x" * content, "log": []}, run_id="run", name="job")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("log", step).at(step=step)
        ids.append(manager.save_checkpoint(state))
    return ids


def loadable(manager: CheckpointManager, ids: list[str]) -> list[int]:
    """The steps whose checkpoints can be loaded."""
    found = []
    for step, checkpoint_id in enumerate(ids, 1):
        try:
            assert manager.load_checkpoint(checkpoint_id)["log"] == list(range(1, step + 1))
        except (CorruptError, NotFoundError):
            continue
        found.append(step)
    return found


def test_a_keyframe_is_due_at_least_every_128_deltas() -> None:
    storage = MemoryStorage()
    fill(storage, 300, content=200_000)
    frames = [header.frame for header in storage.headers(RecordQuery(run_id="run"))]
    keys = [number for number, frame in enumerate(frames[::-1], 1) if frame == "key"]
    assert keys == [1, 129, 257]


@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_any_damaged_record_costs_at_most_the_deltas_up_to_the_next_keyframe(
    medium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "_MOST_DELTAS", MOST)
    with open_medium(medium, tmp_path / "sound") as storage:
        ids = fill(storage, STEPS)
    lost = []
    for seq in range(1, STEPS + 1):
        directory = tmp_path / f"damaged-{seq}"
        shutil.copytree(tmp_path / "sound", directory)
        with open_medium(medium, directory) as storage:
            damage(storage, "run", seq)
            manager = CheckpointManager(storage, on_corrupt="fallback")
            state = manager.resume_from_latest("run")
            assert isinstance(state, State)
            manager.save_checkpoint(state.append("log", "next").at(step=state.step + 1))
            assert manager.resume_from_latest("run")["log"][-1] == "next"
            manager.repair("run")
            whole = loadable(manager, ids)
            lost.append(STEPS - len(whole))
            assert state.step == whole[-1]
            assert manager.resume_from_latest("run")["log"][-1] == "next"
            assert not any(verdict.problems for verdict in manager.verify())
        shutil.rmtree(directory)
    # The chain that the last record ends is shorter; in the others, each record takes what follows.
    assert lost[:MOST] == list(range(MOST, 0, -1))
    assert max(lost) == MOST


@pytest.mark.parametrize("noticed", ["load", "verify"])
@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_nothing_that_is_saved_after_damage_is_known_is_lost(
    medium: str, noticed: str, tmp_path: Path
) -> None:
    with open_medium(medium, tmp_path) as storage:
        manager = CheckpointManager(storage)
        state = State.new({"big": "x" * 40_000, "log": []}, run_id="run")
        for step in range(1, 6):
            state = state.append("log", step).at(step=step)
            last = manager.save_checkpoint(state)
        damage(storage, "run", 1)
        if noticed == "verify":
            assert any(verdict.problems for verdict in manager.verify())
        else:
            with pytest.raises(CorruptError):
                manager.load_checkpoint(last)
        for step in range(6, 12):
            state = state.append("log", step).at(step=step)
            saved = manager.save_checkpoint(state)
            loaded = CheckpointManager(storage).load_checkpoint(saved)
            assert loaded["log"] == list(range(1, step + 1))
        frames = [header.frame for header in storage.headers(RecordQuery(run_id="run"))]
        assert frames[::-1][5:] == ["key", *["delta"] * 5]
