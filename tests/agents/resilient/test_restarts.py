"""An agent beside other managers, after a restart, and with operations guarded by hand."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.conftest import MEDIA

from surehold import FilesystemStorage, Storage
from surehold.agents.resilient import fallbacks
from surehold.agents.resilient.manager import ResilientCheckpointManager
from surehold.engine.leases import SavedLease
from surehold.errors import LeaseHeldError, StorageFullError, UsageError
from surehold.storage.base import RecordQuery


@pytest.fixture(params=["memory", "sqlite", "file-zstd"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


def facts_of(manager: ResilientCheckpointManager) -> list[int]:
    """The number of facts in each checkpoint, newest first."""
    listed = manager.list_checkpoints("agent-3")
    return [
        len(manager.load_checkpoint(one.checkpoint_id)["memory"].get("facts", [])) for one in listed
    ]


# A process that restored nothing


def test_an_empty_restart_does_not_push_out_the_last_good_state(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    before = ResilientCheckpointManager("agent-3", storage)
    before.memory["facts"] = [*range(50)]
    for _ in range(5):
        good = before.create_checkpoint("routine")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            restarted = ResilientCheckpointManager("agent-3", storage)
            for _ in range(4):
                restarted.create_checkpoint("routine")
    assert facts_of(restarted) == [0, 0, 0, 50]
    assert caplog.text.count("an empty state is saved by a process that restored nothing") == 3
    assert f"restore_checkpoint({good!r})" in caplog.text
    restarted.restore_checkpoint(good)
    assert len(restarted.memory["facts"]) == 50
    assert all(restarted.verify("agent-3"))


def test_a_new_state_after_a_restart_is_warned_of_too(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    before = ResilientCheckpointManager("agent-3", storage)
    before.memory["facts"] = [*range(50)]
    before.create_checkpoint("routine")
    restarted = ResilientCheckpointManager("agent-3", storage)
    restarted.memory["facts"] = [1]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            restarted.create_checkpoint("routine")
    assert facts_of(restarted) == [1, 1, 1, 50]
    assert caplog.text.count("a new state is saved by a process that restored nothing") == 1


def test_a_restart_that_restores_is_not_warned(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    before = ResilientCheckpointManager("agent-3", storage)
    before.memory["facts"] = [*range(50)]
    before.create_checkpoint("routine")
    restarted = ResilientCheckpointManager("agent-3", storage)
    with caplog.at_level(logging.WARNING):
        latest = restarted.get_latest_checkpoint()
        assert latest is not None
        restarted.restore_checkpoint(latest)
        for _ in range(5):
            restarted.create_checkpoint("routine")
    assert "restored nothing" not in caplog.text
    assert [one.kind for one in restarted.list_checkpoints("agent-3")].count("routine") == 3


# A state that is emptied


@pytest.mark.parametrize("rest", [{}, {"id": 7}])
def test_the_last_state_before_it_was_emptied_is_kept_and_told_once(
    storage: Storage, caplog: pytest.LogCaptureFixture, rest: dict[str, int]
) -> None:
    agent = ResilientCheckpointManager("agent-3", storage)
    agent.current_task.update(rest)
    agent.memory["facts"] = [*range(50)]
    for _ in range(5):
        good = agent.create_checkpoint("routine")
    agent.memory.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            agent.create_checkpoint("routine")
    assert facts_of(agent) == [0, 0, 0, 50]
    what = "memory" if rest else "whole state"
    assert caplog.text.count(f"its {what} was emptied; checkpoint {good}") == 1
    agent.restore_checkpoint(good)
    assert len(agent.memory["facts"]) == 50


def test_a_memory_that_is_emptied_again_and_again_keeps_one_checkpoint(storage: Storage) -> None:
    agent = ResilientCheckpointManager("agent-3", storage)
    for n in range(1, 8):
        agent.memory["facts"] = [*range(n)]
        agent.create_checkpoint("routine")
        agent.memory.clear()
        for _ in range(4):
            agent.create_checkpoint("routine")
    assert facts_of(agent) == [0, 0, 0, 7]


def test_a_task_that_ends_and_a_mailbox_that_is_read_are_not_told_of(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    agent = ResilientCheckpointManager("agent-3", storage)
    agent.memory["facts"] = [1]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            agent.current_task["id"] = agent.mailbox["unread"] = 1
            agent.create_checkpoint("routine")
            agent.current_task.clear()
            agent.mailbox.clear()
            agent.create_checkpoint("routine")
    assert "emptied" not in caplog.text
    assert len(facts_of(agent)) == 3


# Other managers of the agent


def test_a_manager_continues_after_another_saved(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    agent = ResilientCheckpointManager("agent-3", storage)
    agent.memory["n"] = 1
    agent.create_checkpoint("routine")
    operator = ResilientCheckpointManager("agent-3", storage)
    latest = operator.get_latest_checkpoint()
    assert latest is not None
    operator.restore_checkpoint(latest)
    theirs = operator.create_checkpoint("recovery")
    with caplog.at_level(logging.WARNING):
        agent.memory["n"] = 2
        mine = agent.create_checkpoint("routine")
    assert f"another manager saved recovery checkpoint {theirs}" in caplog.text
    (newest,) = agent.list_checkpoints("agent-3", limit=1)
    assert (newest.checkpoint_id, newest.parent_checkpoint_id) == (mine, theirs)
    operator.create_checkpoint("recovery")
    with agent.operation("deploy"):
        operator.create_checkpoint("recovery")
    assert agent.transactions(limit=1)[0].status == "success"
    agent.restore_checkpoint(mine)
    assert agent.memory["n"] == 2
    assert all(agent.verify("agent-3"))


OTHER = """
import sys
from surehold import ResilientCheckpointManager
manager = ResilientCheckpointManager("agent-3", sys.argv[1])
manager.memory["n"] = 7
print(manager.create_checkpoint("routine"), flush=True)
sys.stdin.read()
manager.close()
"""


def test_another_live_process_is_not_saved_over(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/runs"
    command = [sys.executable, "-c", OTHER, address]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    theirs = child.stdout.readline().strip()
    with ResilientCheckpointManager("agent-3", address) as manager:
        with pytest.raises(LeaseHeldError, match=f"process {child.pid}"):
            manager.create_checkpoint("routine")
        with pytest.raises(LeaseHeldError):
            manager.restore_checkpoint(theirs)
        assert manager.get_latest_checkpoint() == theirs, "reading needs no lease"
        child.stdin.close()
        assert child.wait(60) == 0
        manager.restore_checkpoint(theirs)
        assert manager.memory == {"n": 7}
    child.stdout.close()


def test_a_lease_is_renewed_by_saves_and_taken_back_after_it_lapsed(tmp_path: Path) -> None:
    with FilesystemStorage(tmp_path) as storage:
        manager = ResilientCheckpointManager("agent-3", storage)
        manager.create_checkpoint()
        now = [1_000_000.0]
        journal = manager.face.journal
        lease = SavedLease(journal, "agent-4", now=lambda: now[0])
        lease.acquire()
        first = lease.epoch
        assert first is not None
        now[0] += 20
        lease.acquire()
        assert lease.epoch == first, "renewed"
        now[0] += 3600
        other = SavedLease(journal, "agent-4", now=lambda: now[0])
        other.acquire()
        assert other.epoch == first + 1
        other.release()
        lease.acquire()
        assert lease.epoch == first + 2, "taken again"
        lease.release()
        assert lease.epoch is None


# Operations


def test_pre_operation_checkpoints_taken_by_hand_are_released_by_the_next_routine_one(
    storage: Storage,
) -> None:
    manager = ResilientCheckpointManager("agent-3", storage)
    for _ in range(4):
        manager.create_checkpoint("pre_operation")
        manager.create_checkpoint("routine")
    assert [one.kind for one in manager.list_checkpoints("agent-3")] == ["routine"] * 3
    kept = manager.create_checkpoint("pre_operation")
    with manager.operation("deploy"):
        manager.create_checkpoint("recovery")
        try:
            raise ValueError
        except ValueError:
            manager.create_checkpoint("routine")
    assert manager.exists(kept), "a routine checkpoint in an except block says nothing of success"


def test_restoring_half_an_operation_is_warned_of(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    before = ResilientCheckpointManager("agent-3", storage)
    before.memory["step"] = 0
    before.create_checkpoint("routine")
    guarded = before.operation("deploy")
    guarded.__enter__()
    before.memory["step"] = 1
    half = before.create_checkpoint("routine")

    restarted = ResilientCheckpointManager("agent-3", storage)
    assert restarted.get_latest_checkpoint() == half
    with caplog.at_level(logging.WARNING):
        restarted.restore_checkpoint(half)
    assert f"checkpoint {half} was saved during operation 'deploy'" in caplog.text
    assert "roll_back_unfinished()" in caplog.text
    restarted.roll_back_unfinished()
    assert restarted.memory["step"] == 0


@pytest.mark.parametrize(
    "kind", ["rountine", "Routine", "recover", "pre-operation", "preoperation"]
)
def test_a_misspelt_kind_is_refused(kind: str) -> None:
    manager = ResilientCheckpointManager("agent-3", "memory://")
    for call in (manager.create_checkpoint, manager.get_latest_checkpoint):
        with pytest.raises(UsageError, match="did you mean"):
            call(kind)
    manager.create_checkpoint("manual")
    manager.create_checkpoint("nightly")


# Providers and media that do not answer


def test_a_provider_that_hangs_counts_as_failed_after_its_time_limit(storage: Storage) -> None:
    manager = ResilientCheckpointManager("agent-3", storage)
    wait = threading.Event()
    manager.register_provider("remote", wait.wait, lambda value: None, timeout=0.01)
    try:
        checkpoint_id = manager.create_checkpoint()
        assert manager.load_checkpoint(checkpoint_id).metadata["missing"] == {
            "remote": "TimeoutError"
        }
    finally:
        wait.set()
    with pytest.raises(UsageError, match="timeout is 0"):
        manager.register_provider("other", dict, print, timeout=0)


def test_a_provider_within_its_time_limit_is_captured_and_restored(storage: Storage) -> None:
    manager = ResilientCheckpointManager("agent-3", storage)
    held = {"n": 1}
    manager.register_provider("held", lambda: dict(held), held.update, timeout=60)
    checkpoint_id = manager.create_checkpoint()
    held["n"] = 2
    manager.restore_checkpoint(checkpoint_id)
    assert held == {"n": 1}


def test_a_full_disk_does_not_block_a_restore(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ResilientCheckpointManager("agent-3", storage, on_save_failure="fail")
    manager.memory["n"] = 1
    checkpoint_id = manager.create_checkpoint()
    manager.memory["n"] = 2

    def full(batches: object) -> None:
        raise StorageFullError("no room")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(manager.storage, "append", full)
        restored = manager.restore_checkpoint(checkpoint_id)
    assert manager.memory == {"n": 1}
    assert restored.safety_id == ""
    assert "undo_restore() cannot undo it: no room" in caplog.text
    manager.create_checkpoint()
    query = RecordQuery(run_id="agent-3", kind="transaction", notes=True)
    assert not list(storage.headers(query)), "no transaction was begun"


def test_a_copy_on_the_same_disk_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)
    monkeypatch.setattr(fallbacks, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ResilientCheckpointManager("agent-3").close()
        ResilientCheckpointManager("agent-3", "memory://", fallbacks=["file:copy"]).close()
    assert caplog.text.count("on the same disk as sqlite:///.surehold/surehold.db") == 1
    assert caplog.text.count("on the same disk") == 1
