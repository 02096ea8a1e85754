"""`ResilientCheckpointManager`: providers, partial checkpoints, restores, operations, drift."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import KEY, MEDIA

from surehold import CheckpointManager, FilesystemStorage, MemoryStorage, State, Storage
from surehold.agents.resilient.manager import ResilientCheckpointManager
from surehold.core.policy.drift import DriftReport, Finding
from surehold.core.policy.drift_detectors import Invariants, default_detectors
from surehold.core.policy.rules import Rules
from surehold.errors import (
    CorruptError,
    DriftError,
    NotFoundError,
    RunError,
    StorageError,
    UsageError,
)
from surehold.storage.base import RecordQuery


class Clock:
    """A wall clock and a monotonic one that move when they are told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def pass_by(self, **length: float) -> None:
        self.now += timedelta(**length)

    def wall(self) -> datetime:
        return self.now

    def monotonic(self) -> float:
        return self.now.timestamp()


class File:
    """A provider on a real file, which can be made unreadable or unwritable."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.path.write_text(text)
        self.fails = False
        self.written: list[str] = []

    def capture(self) -> str:
        return self.path.read_text()

    def restore(self, text: str) -> None:
        if self.fails:
            self.path.write_text("half")
            self.fails = False
            raise OSError("the disk is gone")
        self.written.append(text)
        self.path.write_text(text)


@pytest.fixture(params=["memory", "sqlite", "file-zstd"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(storage: Storage, clock: Clock) -> Callable[..., ResilientCheckpointManager]:
    def made(agent_id: str = "agent-1", **options: Any) -> ResilientCheckpointManager:
        return ResilientCheckpointManager(
            agent_id,
            options.pop("storage", storage),
            clock=clock.wall,
            monotonic=clock.monotonic,
            **options,
        )

    return made


@pytest.fixture
def manager(make: Callable[..., ResilientCheckpointManager]) -> ResilientCheckpointManager:
    return make()


def kinds(manager: ResilientCheckpointManager) -> list[str]:
    return [entry.kind for entry in manager.list_checkpoints(manager.agent_id)]


# What it is


def test_it_is_a_checkpoint_manager(manager: ResilientCheckpointManager) -> None:
    assert isinstance(manager, CheckpointManager)
    other = State.new({"n": 1}, run_id="other")
    assert manager.load_checkpoint(manager.save_checkpoint(other))["n"] == 1


def test_a_checkpoint_is_there_for_the_next_process(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    one = make()
    one.memory["seen"] = {1, 2}
    one.create_checkpoint()
    two = make()
    latest = two.get_latest_checkpoint()
    assert latest is not None
    two.restore_checkpoint(latest)
    assert two.memory == {"seen": {1, 2}}


def test_it_works_by_default_where_surehold_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)
    with ResilientCheckpointManager("agent-3") as manager:
        checkpoint_id = manager.create_checkpoint("routine")
        assert manager.get_latest_checkpoint("routine") == checkpoint_id
    assert (tmp_path / ".surehold" / "surehold.db").is_file()
    with CheckpointManager("file:.surehold/fallback") as copy:
        assert copy.exists(checkpoint_id), "and a copy of it is kept"


def test_it_goes_on_with_a_copy_while_its_storage_is_away(tmp_path: Path) -> None:
    address, copy = f"sqlite:///{tmp_path}/a/runs.db", f"file://{tmp_path}/b"
    with ResilientCheckpointManager("agent-1", address, fallbacks=[copy]) as manager:
        manager.memory["n"] = 1
        first = manager.create_checkpoint()
    shutil.move(tmp_path / "a", tmp_path / "away")
    (tmp_path / "a").write_text("a file where the directory was")
    with ResilientCheckpointManager("agent-1", address, fallbacks=[copy]) as manager:
        assert manager.get_latest_checkpoint() == first
        manager.memory["n"] = 2
        second = manager.create_checkpoint()
        manager.restore_checkpoint(first)
        assert manager.memory == {"n": 1}
    (tmp_path / "a").unlink()
    shutil.move(tmp_path / "away", tmp_path / "a")
    with ResilientCheckpointManager("agent-1", address, fallbacks=[copy]) as manager:
        manager.restore_checkpoint(second)
        assert manager.memory == {"n": 2}
        assert all(manager.verify("agent-1"))
    with CheckpointManager(address) as primary:
        assert primary.exists(second), "the storage has what it missed"


def test_what_is_damaged_in_one_copy_is_made_whole_from_the_other(tmp_path: Path) -> None:
    address, copy = f"file://{tmp_path}/a", f"file://{tmp_path}/b"
    with ResilientCheckpointManager("agent-1", address, fallbacks=[copy]) as manager:
        for n in range(5):
            manager.memory["text"] = f"kelp {n}"
            manager.create_checkpoint("manual")
    (file,) = (tmp_path / "a" / "agent-1").glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b"kelp 2", b"help 2"))
    with ResilientCheckpointManager("agent-1", address, fallbacks=[copy]) as manager:
        assert not manager.detect_drift()
        manager.create_checkpoint("manual")
        assert all(manager.verify("agent-1"))
    with CheckpointManager(address) as primary:
        assert all(primary.verify("agent-1"))
        states = [entry.state["memory"]["text"] for entry in primary.history("agent-1")[:5]]
        assert states == [f"kelp {n}" for n in range(5)]


def test_fallbacks_are_addresses_beside_an_address(storage: Storage) -> None:
    with pytest.raises(UsageError, match="fallbacks go with"):
        ResilientCheckpointManager("agent-1", storage, fallbacks=["memory://"])


def test_every_checkpoint_is_one_of_its_own(manager: ResilientCheckpointManager) -> None:
    ids = [manager.create_checkpoint("manual") for _ in range(5)]
    assert len(set(ids)) == 5


def test_agents_with_names_that_begin_alike_do_not_see_each_other(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    one, ten = make("agent-1"), make("agent-10")
    ten.memory["whose"] = "ten"
    for _ in range(5):
        ten.create_checkpoint()
        assert one.get_latest_checkpoint() is None
    for _ in range(5):
        one.create_checkpoint()
    assert len(ten.list_checkpoints("agent-10")) == 3
    with pytest.raises(UsageError, match="belongs to run 'agent-10'"):
        one.restore_checkpoint(ten.get_latest_checkpoint() or "")


@pytest.mark.parametrize("agent_id", ["../x", "a_b", "ä/ö", "x" * 300])
def test_any_text_may_be_an_agents_id(
    make: Callable[..., ResilientCheckpointManager], agent_id: str
) -> None:
    manager = make(agent_id)
    manager.restore_checkpoint(manager.create_checkpoint())


def test_an_empty_agent_id_is_refused(storage: Storage) -> None:
    with pytest.raises(UsageError, match="agent_id"):
        ResilientCheckpointManager("", storage)


# Providers


def test_a_subclass_adds_to_what_a_provider_gives(storage: Storage) -> None:
    class Custom(ResilientCheckpointManager):
        def _get_operational_context(self) -> dict[str, Any]:
            context = super()._get_operational_context()
            context.update({"custom_fields": {"special": [1, 2]}})
            return context

    manager = Custom("agent-1", storage)
    manager.operational_context["goals"] = ["grow"]
    state = manager.load_checkpoint(manager.create_checkpoint())
    assert state["operational_context"] == {"goals": ["grow"], "custom_fields": {"special": [1, 2]}}
    assert "custom_fields" not in manager.operational_context


def test_a_registered_provider_is_captured_and_restored(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    file = File(tmp_path / "notes", "one")
    manager.register_provider("notes", file.capture, file.restore)
    checkpoint_id = manager.create_checkpoint()
    file.path.write_text("two")
    assert manager.restore_checkpoint(checkpoint_id).providers[-1] == "notes"
    assert file.path.read_text() == "one"


def test_a_provider_is_registered_once_and_whole(manager: ResilientCheckpointManager) -> None:
    for name, capture, restore in (
        ("memory", dict, print),
        ("", dict, print),
        ("x", None, print),
        ("x", dict, 3),
    ):
        with pytest.raises(UsageError):
            manager.register_provider(name, capture, restore)  # type: ignore[arg-type]


def test_a_provider_that_fails_makes_the_checkpoint_partial_and_says_so(
    manager: ResilientCheckpointManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = File(tmp_path / "memory.json", "kept")
    manager.register_provider("file", file.capture, file.restore)
    whole = manager.create_checkpoint()
    file.path.unlink()
    with caplog.at_level(logging.WARNING):
        partial = manager.create_checkpoint()
    assert "file" in caplog.text and "FileNotFoundError" in caplog.text
    (entry,) = manager.list_checkpoints("agent-1", tag="partial")
    assert entry.checkpoint_id == partial
    assert entry.metadata["missing"] == {"file": "FileNotFoundError"}
    assert "file" not in manager.load_checkpoint(partial)
    assert manager.get_latest_checkpoint() == whole, "what cannot be restored is not the latest"


def test_a_value_that_cannot_be_stored_is_a_provider_that_fails(
    manager: ResilientCheckpointManager,
) -> None:
    manager.memory["socket"] = object()
    checkpoint_id = manager.create_checkpoint()
    assert manager.list_checkpoints("agent-1")[0].metadata["missing"] == {"memory": "EncodeError"}
    assert "memory" not in manager.load_checkpoint(checkpoint_id)


def test_when_no_provider_gives_anything_nothing_is_saved(storage: Storage) -> None:
    class Broken(ResilientCheckpointManager):
        def _get_current_task_state(self) -> dict[str, Any]:
            raise OSError("gone")

        _get_mailbox_state = _get_current_task_state
        _get_operational_context = _get_current_task_state
        _get_memory_state = _get_current_task_state

    manager = Broken("agent-1", storage)
    with pytest.raises(RunError, match="no provider could be captured"):
        manager.create_checkpoint()
    assert manager.list_checkpoints() == []


def test_what_is_saved_does_not_change_with_the_live_objects(
    manager: ResilientCheckpointManager,
) -> None:
    manager.memory["plan"] = {"steps": ["read"]}
    checkpoint_id = manager.create_checkpoint()
    manager.memory["plan"]["steps"].append("write")
    manager.restore_checkpoint(checkpoint_id)
    manager.memory["plan"]["steps"].append("send")
    manager.restore_checkpoint(checkpoint_id)
    assert manager.memory == {"plan": {"steps": ["read"]}}


# Restoring


def test_a_restore_saves_what_there_was_and_can_be_undone(
    manager: ResilientCheckpointManager,
) -> None:
    manager.memory["n"] = 1
    first = manager.create_checkpoint()
    manager.memory["n"] = 2
    done = manager.restore_checkpoint(first)
    assert manager.memory == {"n": 1}
    safety = manager.load_checkpoint(done.safety_id)
    assert (safety.kind, safety["memory"]) == ("recovery", {"n": 2})
    manager.undo_restore()
    assert manager.memory == {"n": 2}
    manager.undo_restore()
    assert manager.memory == {"n": 1}


def test_the_agent_goes_on_from_what_was_restored(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    manager = make()
    manager.memory["n"] = 1
    first = manager.create_checkpoint()
    manager.memory["n"] = 2
    manager.restore_checkpoint(first)
    again = make()
    state = again.resume_from_latest("agent-1")
    assert state["memory"] == {"n": 1}, "a crash right after a restore does not bring back the old"
    assert state.metadata["restored_from"] == first
    assert again.list_checkpoints("agent-1")[0].parent_checkpoint_id == first


def test_nothing_to_undo_is_said(manager: ResilientCheckpointManager) -> None:
    with pytest.raises(UsageError, match="nothing of agent"):
        manager.undo_restore()


def test_a_unique_beginning_of_an_id_is_enough(manager: ResilientCheckpointManager) -> None:
    checkpoint_id = manager.create_checkpoint()
    assert manager.restore_checkpoint(checkpoint_id[:-2]).checkpoint_id == checkpoint_id


def test_a_restore_that_fails_puts_back_what_came_before(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    first, second = File(tmp_path / "a", "a1"), File(tmp_path / "b", "b1")
    third = File(tmp_path / "c", "c1")
    for name, file in (("a", first), ("b", second), ("c", third)):
        manager.register_provider(name, file.capture, file.restore)
    manager.memory["n"] = 1
    checkpoint_id = manager.create_checkpoint()
    manager.memory["n"] = 2
    for file in (first, second, third):
        file.path.write_text(f"{file.path.name}2")
    second.fails = True
    with pytest.raises(RunError, match="'b' could not be restored: OSError") as caught:
        manager.restore_checkpoint(checkpoint_id)
    assert caught.value.not_put_back == {}
    assert [file.path.read_text() for file in (first, second, third)] == ["a2", "b2", "c2"]
    assert manager.memory == {"n": 2}
    assert third.written == [], "those after it were not touched"
    (transaction,) = manager.transactions()
    assert (transaction.operation, transaction.status) == ("restore", "rollback")
    assert "OSError" in transaction.error
    assert manager.resume_from_latest("agent-1")["memory"] == {"n": 2}


def test_what_cannot_be_captured_now_can_be_restored_and_comes_last(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    order: list[str] = []
    file = File(tmp_path / "a", "good")

    def restore(text: str) -> None:
        order.append("file")
        file.restore(text)

    manager.register_provider("file", file.capture, restore)
    manager.register_provider("last", lambda: 1, lambda value: order.append("last"))
    checkpoint_id = manager.create_checkpoint()
    file.path.unlink()
    done = manager.restore_checkpoint(checkpoint_id)
    assert file.path.read_text() == "good"
    assert order == ["last", "file"]
    assert "partial" in manager.load_checkpoint(done.safety_id).tags


def test_what_could_not_be_put_back_is_named(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    broken, failing = File(tmp_path / "a", "a1"), File(tmp_path / "b", "b1")
    manager.register_provider("broken", broken.capture, broken.restore)
    manager.register_provider("failing", failing.capture, failing.restore)
    checkpoint_id = manager.create_checkpoint()
    broken.path.unlink()
    failing.path.unlink()
    failing.fails = True
    with pytest.raises(RunError) as caught:
        manager.restore_checkpoint(checkpoint_id)
    assert [*caught.value.not_put_back] == ["failing", "broken"]
    assert "could not be captured before" in str(caught.value)


def test_a_safety_checkpoint_that_cannot_be_stored_stops_the_restore(
    manager: ResilientCheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.memory["n"] = 1
    checkpoint_id = manager.create_checkpoint()
    manager.memory["n"] = 2

    def full(batches: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(manager.storage, "append", full)
    with pytest.raises(StorageError, match="no room"):
        manager.restore_checkpoint(checkpoint_id)
    assert manager.memory == {"n": 2}


def test_a_restore_whose_outcome_cannot_be_stored_is_put_back(
    manager: ResilientCheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.memory["n"] = 1
    checkpoint_id = manager.create_checkpoint()
    manager.memory["n"] = 2
    append, calls = manager.storage.append, []

    def once(batches: Any) -> Any:
        calls.append(batches)
        if len(calls) == 2:
            raise StorageError("no room")
        return append(batches)

    monkeypatch.setattr(manager.storage, "append", once)
    with pytest.raises(StorageError, match="no room"):
        manager.restore_checkpoint(checkpoint_id)
    assert manager.memory == {"n": 2}
    assert manager.transactions()[0].status == "rollback"
    manager.create_checkpoint()
    assert manager.resume_from_latest("agent-1")["memory"] == {"n": 2}
    manager.restore_checkpoint(checkpoint_id)
    assert manager.memory == {"n": 1}


def test_where_failed_saves_are_only_warned_of_nothing_is_risked_without_one(
    make: Callable[..., ResilientCheckpointManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = make(on_save_failure="warn")
    manager.memory["n"] = 1
    checkpoint_id = manager.create_checkpoint()
    manager.memory["n"] = 2

    def full(batches: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(manager.storage, "append", full)
    assert manager.create_checkpoint() == ""
    with pytest.raises(StorageError, match="nothing was restored"):
        manager.restore_checkpoint(checkpoint_id)
    with pytest.raises(StorageError, match="not started"), manager.operation("deploy"):
        raise AssertionError("it was begun")
    assert manager.memory == {"n": 2}


def test_what_a_failed_restore_could_not_put_back_or_log_is_told_with_its_error(
    manager: ResilientCheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = File(tmp_path / "a", "a1")
    manager.register_provider("file", file.capture, file.restore)
    checkpoint_id = manager.create_checkpoint()
    append, calls = manager.storage.append, []

    def once(batches: Any) -> Any:
        calls.append(batches)
        if len(calls) == 1:
            return append(batches)
        file.fails = True
        raise StorageError("no room")

    monkeypatch.setattr(manager.storage, "append", once)
    with pytest.raises(StorageError, match="no room") as caught:
        manager.restore_checkpoint(checkpoint_id)
    put_back, log = caught.value.__notes__
    assert "not put back as they were: {'file': 'OSError" in put_back
    assert "not in the transaction log" in log


def test_a_partial_checkpoint_is_restored_only_if_that_is_said(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    file = File(tmp_path / "a", "a1")
    manager.register_provider("file", file.capture, file.restore)
    manager.memory["n"] = 1
    file.path.unlink()
    partial = manager.create_checkpoint()
    file.path.write_text("a2")
    manager.memory["n"] = 2
    with pytest.raises(UsageError, match="does not hold file"):
        manager.restore_checkpoint(partial)
    assert manager.memory == {"n": 2}
    manager.restore_checkpoint(partial, partial=True)
    assert manager.memory == {"n": 1} and file.path.read_text() == "a2"
    now = manager.resume_from_latest("agent-1")
    assert (now["memory"], now["file"], now.tags) == ({"n": 1}, "a2", ())


def test_what_no_provider_restores_is_refused(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    one = make()
    one.register_provider("extra", lambda: 1, print)
    checkpoint_id = one.create_checkpoint()
    with pytest.raises(UsageError, match="holds extra"):
        make().restore_checkpoint(checkpoint_id)


def test_where_there_is_no_checkpoint_yet_that_is_said(manager: ResilientCheckpointManager) -> None:
    latest: Any = manager.get_latest_checkpoint()
    with pytest.raises(UsageError, match="there is no checkpoint") as caught:
        manager.restore_checkpoint(latest)
    assert "get_latest_checkpoint" in caught.value.hint


def test_a_missing_checkpoint_is_not_found(manager: ResilientCheckpointManager) -> None:
    for missing in ("0000", "/no/such/file.surehold", Path("nowhere.jsonl")):
        with pytest.raises(NotFoundError):
            manager.restore_checkpoint(missing)
    assert manager.list_checkpoints() == [], "nothing was saved for it either"


def test_a_damaged_checkpoint_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with FilesystemStorage(tmp_path / "runs") as storage:
        manager = ResilientCheckpointManager("agent-1", storage)
        manager.memory["text"] = "kelp and dulse"
        checkpoint_id = manager.create_checkpoint()
        manager.memory["text"] = "other"
        manager.create_checkpoint()
    (file,) = (tmp_path / "runs" / "agent-1").glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b"kelp and dulse", b"kelp and dulze"))
    with FilesystemStorage(tmp_path / "runs") as storage:
        manager = ResilientCheckpointManager("agent-1", storage)
        manager.memory["text"] = "live"
        with pytest.raises(CorruptError):
            manager.restore_checkpoint(checkpoint_id)
        with pytest.raises(CorruptError):
            manager.restore_checkpoint(file)
    assert manager.memory == {"text": "live"}


@pytest.mark.parametrize("key", [None, KEY])
def test_an_exported_file_is_restored_on_another_machine(
    storage: Storage, tmp_path: Path, key: str | None
) -> None:
    here = ResilientCheckpointManager("agent-1", storage, encryption_key=key)
    here.memory["n"] = 1
    here.create_checkpoint()
    path = tmp_path / "agent.surehold"
    here.export_run("agent-1", path)
    there = ResilientCheckpointManager("agent-1", "memory://", encryption_key=key)
    there.restore_checkpoint(str(path))
    assert there.memory == {"n": 1}
    there.undo_restore()
    assert there.memory == {}
    with pytest.raises(UsageError, match="not to agent 'agent-2'"):
        other = ResilientCheckpointManager("agent-2", "memory://", encryption_key=key)
        other.restore_checkpoint(path)


@pytest.mark.parametrize("compress", [False, "gzip", "zstd"])
def test_the_journal_of_a_directory_is_restored_from_its_path(
    tmp_path: Path, compress: Any
) -> None:
    with FilesystemStorage(tmp_path / "runs", compress=compress) as storage:
        manager = ResilientCheckpointManager("agent-1", storage)
        for n in range(5):
            manager.memory["n"] = n
            manager.create_checkpoint()
        (path,) = (tmp_path / "runs" / "agent-1").iterdir()
        before = path.read_bytes()
        other = ResilientCheckpointManager("agent-1", MemoryStorage())
        other.restore_checkpoint(path)
        assert other.memory == {"n": 4}
        assert path.read_bytes() == before
        with pytest.raises(UsageError, match="not to agent 'agent-2'"):
            ResilientCheckpointManager("agent-2", MemoryStorage()).restore_checkpoint(path)


# Retention


def test_the_last_three_routine_checkpoints_stay(manager: ResilientCheckpointManager) -> None:
    ids = [manager.create_checkpoint() for _ in range(10)]
    left = [entry.checkpoint_id for entry in manager.list_checkpoints("agent-1", kind="routine")]
    assert left == ids[:-4:-1]


def test_recovery_checkpoints_stay_for_seven_days(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    old = manager.create_checkpoint("recovery")
    clock.pass_by(days=6.9)
    manager.create_checkpoint()
    assert manager.exists(old)
    clock.pass_by(days=0.2)
    manager.create_checkpoint()
    assert not manager.exists(old)


def test_pre_operation_checkpoints_stay_until_they_are_released(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    kept = manager.create_checkpoint("pre_operation")
    for _ in range(9):
        clock.pass_by(days=30)
        manager.create_checkpoint("recovery")
    assert manager.exists(kept)
    manager.release(kept)
    manager.create_checkpoint("recovery")
    assert not manager.exists(kept)


def test_the_latest_before_another_is_found(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    ids = []
    for _ in range(3):
        ids.append(manager.create_checkpoint())
        clock.pass_by(minutes=30)
    recovery = manager.create_checkpoint("recovery")
    assert manager.get_latest_checkpoint() == ids[2]
    assert manager.get_latest_checkpoint("recovery") == recovery
    assert manager.get_latest_checkpoint(before=ids[2]) == ids[1]
    assert manager.get_latest_checkpoint(before=recovery) == ids[2]
    assert manager.get_latest_checkpoint(before=clock.now - timedelta(minutes=60)) == ids[0]
    assert manager.get_latest_checkpoint(before=ids[0]) is None
    assert manager.get_latest_checkpoint("of my own") is None
    with pytest.raises(UsageError, match="time zone"):
        manager.get_latest_checkpoint(before=datetime(2026, 1, 1))


# Operations


def test_an_operation_that_succeeds_releases_its_checkpoint(
    manager: ResilientCheckpointManager,
) -> None:
    with manager.operation("deploy", host="a") as operation:
        manager.memory["deployed"] = True
        assert manager.load_checkpoint(operation.checkpoint_id).kind == "pre_operation"
    assert manager.memory == {"deployed": True}
    (transaction,) = manager.transactions()
    assert (transaction.operation, transaction.status) == ("deploy", "success")
    assert transaction.details["host"] == "a"
    manager.create_checkpoint()
    assert not manager.exists(operation.checkpoint_id)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_operation_that_fails_is_rolled_back_and_raises(
    manager: ResilientCheckpointManager, error: BaseException
) -> None:
    manager.memory["n"] = 1
    with pytest.raises(type(error)) as caught, manager.operation("deploy") as operation:
        manager.memory["n"] = 2
        raise error
    assert caught.value is error
    assert manager.memory == {"n": 1}
    restore, deploy = manager.transactions()
    assert (restore.operation, restore.status) == ("restore", "success")
    assert (deploy.operation, deploy.status) == ("deploy", "rollback")
    for _ in range(5):
        manager.create_checkpoint()
    assert manager.exists(operation.checkpoint_id), "kept until the operation succeeds"
    with manager.operation("deploy"):
        pass
    manager.create_checkpoint()
    assert not manager.exists(operation.checkpoint_id)


def test_an_operation_inside_another_is_rolled_back_with_it(
    manager: ResilientCheckpointManager,
) -> None:
    manager.memory["n"] = 0
    with pytest.raises(ValueError), manager.operation("outer"):
        manager.memory["n"] = 1
        with manager.operation("inner"):
            manager.memory["n"] = 2
        raise ValueError
    assert manager.memory == {"n": 0}
    told = {one.operation: one.status for one in manager.transactions()}
    assert told == {"restore": "success", "inner": "success", "outer": "rollback"}


def test_an_operation_whose_rollback_fails_says_so(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    file = File(tmp_path / "a", "a1")
    manager.register_provider("file", file.capture, file.restore)
    with pytest.raises(ValueError) as caught, manager.operation("deploy"):
        file.fails = True
        raise ValueError("no")
    assert "the agent was not restored" in caught.value.__notes__[0]
    assert [one.status for one in manager.transactions()] == ["rollback", "failure"]


def test_an_operation_that_could_not_be_undone_is_not_begun(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    manager.register_provider("file", (tmp_path / "gone").read_text, print)
    with pytest.raises(RunError, match="not started"), manager.operation("deploy"):
        raise AssertionError("it was begun")
    assert manager.transactions() == []


KILLED = """
import os, signal, sys
from pathlib import Path
from surehold.agents.resilient.manager import ResilientCheckpointManager

manager = ResilientCheckpointManager("agent-1", sys.argv[1])
file = Path(sys.argv[2])
manager.register_provider("file", file.read_text, file.write_text)
manager.create_checkpoint()
with manager.operation("deploy"):
    file.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_operation_that_was_killed_is_found_and_rolled_back(tmp_path: Path) -> None:
    file, address = tmp_path / "file", f"sqlite:///{tmp_path}/runs.db"
    file.write_text("whole")
    command = [sys.executable, "-c", KILLED, address, str(file)]
    assert subprocess.run(command, check=False, timeout=500).returncode == -signal.SIGKILL
    assert file.read_text() == "half"
    with ResilientCheckpointManager("agent-1", address) as manager:
        manager.register_provider("file", file.read_text, file.write_text)
        assert [one.operation for one in manager.transactions(status="started")] == ["deploy"]
        (undone,) = manager.roll_back_unfinished()
        assert (undone.operation, undone.status) == ("deploy", "rollback")
        assert file.read_text() == "whole"
        assert manager.roll_back_unfinished() == []


RESTORING = """
import itertools, os, signal, sys
from pathlib import Path
from surehold.agents.resilient.manager import ResilientCheckpointManager

manager = ResilientCheckpointManager("agent-1", sys.argv[1])

writes = itertools.count(1)

def writer(file):
    def write(text):
        print(file.name, flush=True)
        if next(writes) == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        file.write_text(text)
    return write

for name in "abc":
    file = Path(sys.argv[2], name)
    manager.register_provider(name, file.read_text, writer(file))
for checkpoint_id in itertools.cycle(sys.argv[4:]):
    manager.restore_checkpoint(checkpoint_id)
"""


def test_a_restore_that_is_killed_anywhere_is_all_or_nothing(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    files = [tmp_path / name for name in "abc"]
    chance = random.Random(11)
    for file in files:
        file.write_text("")

    def opened() -> ResilientCheckpointManager:
        manager = ResilientCheckpointManager("agent-1", address)
        for file in files:
            manager.register_provider(file.name, file.read_text, file.write_text)
        return manager

    ids = []
    with opened() as manager:
        for text in ("one", "two"):
            for file in files:
                file.write_text(text * 1000)
            ids.append(manager.create_checkpoint("manual"))
    half = 0
    for own in (2, 0, 3, 0, 5, 0, 9, 0):  # it kills itself at a write, or is killed at any moment
        command = [sys.executable, "-c", RESTORING, address, str(tmp_path), str(own), *ids]
        lines = own or chance.randint(1, 8)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(lines):
                child.stdout.readline()
            if not own:
                child.kill()
        half += len({file.read_text() for file in files}) > 1
        with opened() as manager:
            manager.roll_back_unfinished()
            assert len({file.read_text() for file in files}) == 1
            assert files[0].read_text() in ("one" * 1000, "two" * 1000)
            assert all(manager.verify("agent-1"))
    assert half, "no kill came in the middle of a restore, so nothing was shown"


# Drift


def stall(manager: ResilientCheckpointManager, clock: Clock, cycles: int = 31) -> list[bool]:
    """An agent that works on and gets no further; what each look said."""
    said = []
    for n in range(cycles):
        manager.memory["noise"] = n
        clock.pass_by(seconds=60)
        said.append(bool(manager.detect_drift()))
    return said


def test_drift_is_told_from_the_agents_own_task(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    manager.current_task.update(id="t1", progress_percentage=40)
    assert stall(manager, clock) == [False] * 30 + [True]
    report = manager.drift_report()
    assert "no progress beyond 40 in 30 steps" in str(report)
    assert report.findings[0].level == "restore"


def test_a_new_manager_without_a_task_does_not_drift(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    assert not any(stall(manager, clock, 60))


def test_a_task_that_is_done_does_not_drift(
    manager: ResilientCheckpointManager, clock: Clock
) -> None:
    manager.current_task.update(id="t1", progress_percentage=100)
    assert not any(stall(manager, clock, 20))
    manager.current_task.update(id="t2", status="completed", progress_percentage=90)
    assert not any(stall(manager, clock, 20))


def test_each_look_is_a_step_unless_it_was_observed(manager: ResilientCheckpointManager) -> None:
    for _ in range(9):
        manager.observe(action="search", seconds=1.0)
        assert not manager.detect_drift()
    assert manager.drift_report().observations == 9
    manager.observe(action="search", seconds=1.0)
    assert manager.detect_drift() and manager.drift_report().findings[0].detector == "repetition"
    with pytest.raises(UsageError, match="has no option mood"):
        manager.observe(mood="good")
    with pytest.raises(UsageError, match="progress"):
        manager.observe(progress="far")


def test_failures_that_are_handled_count_as_failed_steps(
    manager: ResilientCheckpointManager,
) -> None:
    said = []
    for _ in range(4):
        try:
            raise ValueError("no")
        except ValueError:
            checkpoint_id = manager.create_checkpoint("recovery")
        said.append(bool(manager.drift_report()))
    assert said == [False, False, False, True]
    assert manager.load_checkpoint(checkpoint_id).metadata["error"] == "ValueError"


def test_an_agent_that_fails_at_every_start_is_seen_to(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    said = []
    for _ in range(4):
        manager = make()
        try:
            raise ValueError("no")
        except ValueError:
            manager.create_checkpoint("recovery")
        said.append(bool(manager.drift_report()))
    assert said == [False, False, False, True]


def test_after_a_restore_it_needs_to_see_as_much_again(
    make: Callable[..., ResilientCheckpointManager], clock: Clock
) -> None:
    manager = make()
    manager.current_task.update(id="t1", progress_percentage=40)
    checkpoint_id = manager.create_checkpoint()
    assert stall(manager, clock)[-1]
    manager.restore_checkpoint(checkpoint_id)
    assert not manager.drift_report()
    assert not any(stall(make(), clock, 29)), "nor does the next process count it"
    assert stall(manager, clock, 30) == [False] * 29 + [True]


def test_what_the_restored_state_breaks_does_not_fire_at_once(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    rule = Invariants({"in budget": lambda values: values["memory"].get("spent", 0) <= 5})
    manager = make(detectors=[rule])
    manager.memory["spent"] = 9
    checkpoint_id = manager.create_checkpoint()
    fired = 0
    for _ in range(20):
        if manager.detect_drift():
            fired += 1
            manager.restore_checkpoint(checkpoint_id)
    assert fired == 1
    manager.memory["spent"] = 1
    assert not manager.detect_drift()
    manager.memory["spent"] = 7
    assert manager.detect_drift()


def test_sensitivity_and_thresholds_are_settings(
    make: Callable[..., ResilientCheckpointManager], clock: Clock
) -> None:
    found: dict[str, int] = {}
    for how, options in (
        ("low", {"drift_sensitivity": "low", "detectors": default_detectors(stalled_after=5)}),
        ("normal", {"detectors": default_detectors(stalled_after=5)}),
        ("high", {"drift_sensitivity": "high", "detectors": default_detectors(stalled_after=5)}),
        ("own", {"detectors": default_detectors(stalled_after=12)}),
    ):
        manager = make(how, **options)
        manager.current_task.update(id="t1", progress_percentage=40)
        found[how] = stall(manager, clock, 60).index(True)
    assert found == {"low": 29, "normal": 15, "high": 9, "own": 36}
    for wrong in ({"drift_sensitivity": "huge"}, {"on_drift": "panic"}, {"verify_every": 0}):
        with pytest.raises(UsageError):
            make("x", **wrong)


def test_an_agents_own_check_adds_to_the_standard_ones(storage: Storage) -> None:
    class Custom(ResilientCheckpointManager):
        def detect_drift(self) -> bool:
            return super().detect_drift() or bool(self.memory.get("odd"))

    manager = Custom("agent-1", storage, on_drift="stop")
    assert not manager.check_drift()
    manager.memory["odd"] = True
    with pytest.raises(DriftError, match="own check found drift") as caught:
        manager.check_drift()
    assert isinstance(caught.value.report, DriftReport)


def test_damage_to_what_is_stored_is_warned_of_and_restores_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    with FilesystemStorage(tmp_path) as storage:
        manager = ResilientCheckpointManager("agent-1", storage, monotonic=clock.monotonic)
        for n in range(6):
            manager.memory["text"] = f"kelp {n}"
            manager.create_checkpoint("manual")
        assert not manager.detect_drift()
        (file,) = (tmp_path / "agent-1").glob("*.jsonl")
        file.write_bytes(file.read_bytes().replace(b"kelp 3", b"help 3"))
        assert not manager.drift_report().findings, "verified only now and then"
        clock.pass_by(seconds=300)
        assert not manager.detect_drift()
        (found,) = manager.drift_report().findings
        assert (found.detector, found.level) == ("corruption", "warn")


def test_a_history_that_cannot_be_read_is_logged_and_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FilesystemStorage(tmp_path) as storage:
        manager = ResilientCheckpointManager("agent-1", storage)
        manager.observe(task="reef")
        manager.create_checkpoint()
        manager.create_checkpoint()
    (file,) = (tmp_path / "agent-1").glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b"reef", b"beef"))
    with FilesystemStorage(tmp_path) as storage, caplog.at_level(logging.WARNING):
        manager = ResilientCheckpointManager("agent-1", storage)
        assert not manager.detect_drift()
        assert "its history cannot be read" in caplog.text
        assert manager.drift_report().findings[0].detector == "corruption"


def test_a_provider_that_cannot_be_captured_is_drift(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    file = File(tmp_path / "memory.json", "{}")
    manager.register_provider("file", file.capture, file.restore)
    assert not manager.detect_drift()
    file.path.unlink()
    assert manager.detect_drift()
    assert "file cannot be captured" in str(manager.drift_report())


def test_the_policy_warn_takes_a_recovery_checkpoint_and_says_so(
    manager: ResilientCheckpointManager, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    manager.current_task.update(id="t1", progress_percentage=40)
    for _ in range(31):
        clock.pass_by(seconds=60)
        with caplog.at_level(logging.WARNING):
            report = manager.check_drift()
    assert report and "drifts (warn)" in caplog.text
    (entry,) = manager.list_checkpoints("agent-1")
    assert (entry.kind, entry.tags) == ("recovery", ("drift",))


def test_the_policy_stop_raises_with_the_report(
    make: Callable[..., ResilientCheckpointManager], clock: Clock
) -> None:
    manager = make(on_drift="stop")
    manager.current_task.update(id="t1", progress_percentage=40)
    with pytest.raises(DriftError, match="agent-1") as caught:
        for _ in range(31):
            clock.pass_by(seconds=60)
            manager.check_drift()
    assert caught.value.report.findings[0].detector == "stalled"
    assert manager.exists(caught.value.checkpoint_id)


def drift_for_ever(
    manager: ResilientCheckpointManager, clock: Clock, saves: Callable[[int], bool]
) -> list[float]:
    """An agent that never gets beyond 40 per cent; which progress it was taken back to."""
    task = manager.current_task
    task.update(id="t1", progress_percentage=0)
    went_back_to: list[float] = []
    for cycle in range(1, 400):
        clock.pass_by(minutes=1)
        if task["progress_percentage"] < 40:
            task["progress_percentage"] += 10
        if saves(cycle):
            manager.create_checkpoint()
        manager.memory["cycle"] = cycle
        try:
            manager.check_drift()
        except DriftError as error:
            assert "no earlier checkpoint is left" in str(error)
            return went_back_to
        if manager.memory.get("cycle") != cycle:
            went_back_to.append(task["progress_percentage"])
    raise AssertionError("it went on for ever")


def test_the_policy_restore_goes_back_to_before_it_began_and_further_each_time(
    make: Callable[..., ResilientCheckpointManager], clock: Clock
) -> None:
    manager = make(on_drift="restore")
    assert drift_for_ever(manager, clock, lambda cycle: cycle <= 4) == [40, 30, 20]


@pytest.mark.parametrize("every", [1, 2, 5, 9])
def test_the_policy_restore_cannot_loop(
    make: Callable[..., ResilientCheckpointManager], clock: Clock, every: int
) -> None:
    manager = make(on_drift="restore")
    assert len(drift_for_ever(manager, clock, lambda cycle: cycle % every == 0)) <= 3


def test_a_finding_that_only_warns_is_logged_once_and_does_no_more(
    make: Callable[..., ResilientCheckpointManager], caplog: pytest.LogCaptureFixture
) -> None:
    def slow(history: Any) -> Finding:
        return Finding(detector="slow", saw="slow", confidence=1, level="warn")

    manager = make(on_drift="stop", detectors=[slow])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            report = manager.check_drift()
    assert report.findings and not report
    assert kinds(manager) == []
    assert caplog.text.count("agent agent-1: slow: slow (1.00, warn)") == 1


def test_a_run_that_is_damaged_is_passed_over_when_going_back(tmp_path: Path, clock: Clock) -> None:
    with FilesystemStorage(tmp_path) as storage:
        manager = ResilientCheckpointManager("agent-1", storage, on_drift="restore")
        manager.memory["text"] = "kelp 0"
        good = manager.create_checkpoint()
        manager.observe()
        manager.memory["text"] = "kelp 1"
        manager.create_checkpoint()
        manager.observe()
        (file,) = (tmp_path / "agent-1").glob("*.jsonl")
        file.write_bytes(file.read_bytes().replace(b"kelp 1", b"help 1"))
        found = manager._last_good(None)
        assert found is not None and found.id == good


def test_notes_and_transactions_survive_verification_and_export(
    manager: ResilientCheckpointManager, tmp_path: Path
) -> None:
    with manager.operation("deploy"):
        manager.detect_drift()
    manager.restore_checkpoint(manager.create_checkpoint())
    assert all(manager.verify("agent-1"))
    manager.export_run("agent-1", tmp_path / "a.surehold")
    copy = CheckpointManager("memory://")
    copy.import_run(tmp_path / "a.surehold")
    assert all(copy.verify("agent-1"))


def test_a_seed_style_json_form_shows_the_providers(manager: ResilientCheckpointManager) -> None:
    manager.operational_context["goals"] = ["grow"]
    text = manager.export_json(manager.create_checkpoint(), style="resilient")
    assert '"checkpoint_type": "routine"' in text and '"goals"' in text


def test_two_managers_of_one_agent_do_not_overwrite_each_other(
    make: Callable[..., ResilientCheckpointManager],
) -> None:
    one, two = make(), make()
    saved = [one.create_checkpoint("manual"), two.create_checkpoint("manual")]
    saved += [one.create_checkpoint("manual"), two.create_checkpoint("manual")]
    listed = one.list_checkpoints("agent-1")
    assert [entry.checkpoint_id for entry in reversed(listed)] == saved
    assert [entry.parent_checkpoint_id for entry in reversed(listed)] == [None, *saved[:-1]]
    assert all(one.verify("agent-1"))


def test_the_notes_of_observations_hold_no_values(
    manager: ResilientCheckpointManager,
) -> None:
    manager.memory["secret"] = "hunter2"
    manager.detect_drift()
    manager.create_checkpoint()
    query = RecordQuery(run_id="agent-1", kind="observed", notes=True)
    (header,) = manager.storage.headers(query)
    (record,) = manager.storage.read("agent-1", first=header.seq, last=header.seq)
    assert b"hunter2" not in record.body


def test_the_working_directory_is_left_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    manager = ResilientCheckpointManager("agent-1", "memory://")
    manager.restore_checkpoint(manager.create_checkpoint())
    assert os.listdir(tmp_path) == []


def test_an_operation_inside_one_of_the_same_name_does_not_release_its_checkpoint() -> None:
    with ResilientCheckpointManager("a", "memory://") as manager:
        manager.memory["x"] = 1
        with pytest.raises(RuntimeError), manager.operation("deploy"):
            manager.memory["x"] = 2
            with manager.operation("deploy"):
                manager.memory["x"] = 3
            for value in range(10, 15):
                manager.memory["x"] = value
                manager.create_checkpoint()
            raise RuntimeError("it went wrong")
        assert manager.memory["x"] == 1


@pytest.mark.parametrize("end", ["failure", "success", "kill"])
@pytest.mark.parametrize("keep", [1, 2])
def test_retention_leaves_the_checkpoint_before_an_operation_until_it_has_ended(
    storage: Storage, end: str, keep: int
) -> None:
    def opened() -> ResilientCheckpointManager:
        return ResilientCheckpointManager("a", storage, retention=Rules(keep_last=keep))

    manager = opened()
    manager.memory["n"] = 0
    for _ in range(3):
        manager.create_checkpoint()
    guarded = manager.operation("risky")
    before = guarded.__enter__().checkpoint_id
    for number in range(1, 4):
        manager.memory["n"] = number
        manager.create_checkpoint()
    if end == "failure":
        guarded.__exit__(ValueError, ValueError("no"), None)
    elif end == "success":
        guarded.__exit__(None, None, None)
    else:
        manager.close()
        manager = opened()
        assert [one.operation for one in manager.roll_back_unfinished()] == ["risky"]
    assert manager.memory == {"n": 3 if end == "success" else 0}
    assert not manager.retention.marks("a").pinned
    for _ in range(3):
        manager.create_checkpoint()
    assert before not in [one.checkpoint_id for one in manager.list_checkpoints("a")]
    manager.close()
