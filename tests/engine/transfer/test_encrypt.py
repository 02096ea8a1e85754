"""Runs begun in the clear, encrypted in place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import KEY, MEDIA

from surehold import CheckpointManager, Rules, State, Storage
from surehold.engine.leases import RunLease
from surehold.engine.transfer import encrypt as module
from surehold.errors import ConflictError, LeaseHeldError, UsageError, WrongKeyError


@pytest.fixture(params=["memory", "sqlite", "file", "file-zstd"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


def begun(storage: Storage, run_id: str = "r", steps: int = 9) -> list[str]:
    manager = CheckpointManager(storage, retention=Rules(keep_last=4))
    state = State.new({"secret": "hunter2", "n": 0}, run_id=run_id)
    ids = []
    for step in range(1, steps + 1):
        state = state.set("n", step).set("secret", f"hunter2 {step}").at(step=step)
        ids.append(manager.save_checkpoint(state))
    manager.tag(ids[-1], "good")
    return ids


def bodies(storage: Storage) -> bytes:
    return b"".join(record.body for record in storage.read("r"))


def test_clear_runs_are_encrypted_in_place(storage: Storage, tmp_path: Path) -> None:
    ids = begun(storage)
    begun(storage, "other", 1)
    before = CheckpointManager(storage).list_checkpoints("r")
    manager = CheckpointManager(storage, encryption_key=KEY)
    with pytest.raises(WrongKeyError, match="not encrypted") as refused:
        manager.resume_from_latest("r")
    assert "surehold encrypt r" in (refused.value.hint or "")
    assert all(manager.verify()), "a run in the clear is not damaged"
    assert manager.repair(dry_run=True).clean
    assert b"hunter2" in bodies(storage)

    assert manager.encrypt_runs("r", scratch=tmp_path / "scratch") == ["r"]
    assert b"hunter2" not in bodies(storage)
    assert [one.checkpoint_id for one in manager.list_checkpoints("r")] == [
        one.checkpoint_id for one in before
    ]
    assert manager.resume_from_latest("r")["secret"] == "hunter2 9"
    assert manager.load_checkpoint(ids[-2])["n"] == 8
    assert manager.list_checkpoints("r")[0].tags == ("good",)
    assert manager.encrypt_runs(scratch=tmp_path / "scratch") == ["other"]
    assert manager.encrypt_runs(scratch=tmp_path / "scratch") == []
    assert all(manager.verify()) and not list((tmp_path / "scratch").iterdir())
    state = manager.resume_from_latest("r")
    manager.save_checkpoint(state.set("n", 10).at(step=10))
    with pytest.raises(WrongKeyError):
        CheckpointManager(storage, encryption_key="another key, long").resume_from_latest("r")


@pytest.mark.parametrize("after", ["write_encrypted", "delete", "append_whole", "verify_run"])
def test_an_interrupted_encryption_continues(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    begun(storage)
    manager = CheckpointManager(storage, encryption_key=KEY)
    place: Any = storage if after == "delete" else module
    done = getattr(place, after)

    def cut_off(*args: Any, **options: Any) -> Any:
        done(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, after, cut_off)
        with pytest.raises(KeyboardInterrupt):
            manager.encrypt_runs(scratch=tmp_path / "scratch")
    again = CheckpointManager(storage, encryption_key=KEY)
    assert again.encrypt_runs(scratch=tmp_path / "scratch") == ["r"]
    assert again.resume_from_latest("r")["secret"] == "hunter2 9"
    assert all(again.verify()) and b"hunter2" not in bodies(storage)
    assert not list((tmp_path / "scratch").iterdir())


def test_a_run_that_is_held_is_not_encrypted(storage: Storage, tmp_path: Path) -> None:
    begun(storage)
    holder = CheckpointManager(storage)
    manager = CheckpointManager(storage, encryption_key=KEY)
    with RunLease(holder.face.journal, "r"), pytest.raises(LeaseHeldError):
        manager.encrypt_runs("r", scratch=tmp_path / "scratch")
    with pytest.raises(UsageError, match="no key to encrypt with"):
        holder.encrypt_runs("r")


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_encryption_leaves_the_unfinished_one_of_another_storage_alone(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    begun(storage)
    manager = CheckpointManager(storage, encryption_key=KEY)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "append_whole", raise_interrupt)
        manager.encrypt_runs(scratch=tmp_path / "scratch")
    other = CheckpointManager("memory://", encryption_key=KEY)
    begun(other.storage, steps=3)
    if encrypted:
        assert other.encrypt_runs(scratch=tmp_path / "elsewhere") == ["r"]
    with pytest.raises(ConflictError, match="unfinished encryption") as refused:
        other.encrypt_runs(scratch=tmp_path / "scratch")
    assert "scratch" in (refused.value.hint or "")
    assert manager.encrypt_runs(scratch=tmp_path / "scratch") == ["r"]
    assert manager.resume_from_latest("r")["n"] == 9


def test_a_run_whose_id_and_name_are_paths_is_encrypted(storage: Storage, tmp_path: Path) -> None:
    state = State.new({"secret": "hunter2"}, run_id="/data/../in.pdf", name="/srv/agent")
    CheckpointManager(storage).save_checkpoint(state)
    manager = CheckpointManager(storage, encryption_key=KEY)
    assert manager.encrypt_runs(scratch=tmp_path / "scratch") == [state.run_id]
    assert manager.resume_from_latest("/srv/agent")["secret"] == "hunter2"


def raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
