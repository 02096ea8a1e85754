"""The resilient checkpoint system as its document shows it, imports aside."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from surehold import CheckpointManager
from surehold.agents.resilient.manager import ResilientCheckpointManager
from surehold.errors import CorruptError, NotFoundError, UsageError

LOOP = """
# Initialize checkpoint manager
agent_id = "agent-3"
checkpoint_manager = ResilientCheckpointManager(agent_id)

# Track operation time
session_start_time = time.time()
last_checkpoint_time = session_start_time

# Main loop
while True:
    try:
        # Normal agent operations
        process_mailbox()
        check_tasks()
        execute_current_task()

        # Regular checkpoint creation (every 30 minutes)
        current_time = time.time()
        if current_time - last_checkpoint_time >= 1800:
            checkpoint_manager.create_checkpoint("routine")
            last_checkpoint_time = current_time

        # Force state refresh after long uptime (2 hours)
        if current_time - session_start_time >= 7200:
            recovery_checkpoint = checkpoint_manager.create_checkpoint("recovery")
            session_start_time = current_time

        # Check for drift
        if checkpoint_manager.detect_drift():
            logger.warning("Potential drift detected, creating recovery checkpoint")
            recovery_checkpoint = checkpoint_manager.create_checkpoint("recovery")

            # Get latest checkpoint prior to drift
            latest = checkpoint_manager.get_latest_checkpoint("routine")
            if latest:
                logger.info(f"Restoring from latest routine checkpoint: {latest}")
                checkpoint_manager.restore_checkpoint(latest)

    except Exception as e:
        # Create recovery checkpoint on error
        recovery_checkpoint = checkpoint_manager.create_checkpoint("recovery")
        logger.error(f"Error during operation: {str(e)}")
        logger.info(f"Recovery point created: {recovery_checkpoint}")
"""


class EndOfDay(BaseException):
    """Ends a loop that ends for nothing else."""


class Day:
    """Runs the document's loop on a clock of its own, five minutes a cycle."""

    def __init__(self, cycles: int, work: Callable[[Day], None]) -> None:
        self.seconds = 1_000_000.0
        self.cycle = 0
        self.cycles = cycles
        self.work = work
        self.names: dict[str, Any] = {
            "ResilientCheckpointManager": self.manager,
            "time": SimpleNamespace(time=lambda: self.seconds),
            "logger": logging.getLogger("agent"),
            "process_mailbox": self.process_mailbox,
            "check_tasks": lambda: None,
            "execute_current_task": lambda: work(self),
        }

    def manager(self, agent_id: str) -> ResilientCheckpointManager:
        return ResilientCheckpointManager(
            agent_id, "sqlite:///agent.db", monotonic=lambda: self.seconds
        )

    def process_mailbox(self) -> None:
        self.cycle += 1
        self.seconds += 300
        if self.cycle > self.cycles:
            raise EndOfDay

    @property
    def checkpoints(self) -> ResilientCheckpointManager:
        made: ResilientCheckpointManager = self.names["checkpoint_manager"]
        return made

    def run(self) -> ResilientCheckpointManager:
        with pytest.raises(EndOfDay):
            exec(LOOP, self.names)
        return self.checkpoints


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)


def advance(day: Day) -> None:
    task = day.checkpoints.current_task
    task["id"] = "reports"
    task["progress_percentage"] = day.cycle / 10
    day.checkpoints.memory["cycle"] = day.cycle


def kinds(manager: CheckpointManager) -> list[str]:
    return [entry.kind for entry in manager.list_checkpoints("agent-3")]


def test_basic_usage() -> None:
    agent_id = "agent-3"
    checkpoint_manager = ResilientCheckpointManager(agent_id)

    checkpoint_path = checkpoint_manager.create_checkpoint("routine")

    checkpoint_manager.restore_checkpoint(checkpoint_path)

    latest = checkpoint_manager.get_latest_checkpoint("routine")
    assert latest == checkpoint_path
    checkpoint_manager.close()


def test_it_is_a_drop_in_replacement_for_the_standard_manager() -> None:
    for name in vars(CheckpointManager):
        if not name.startswith("_"):
            assert hasattr(ResilientCheckpointManager, name)
    assert issubclass(ResilientCheckpointManager, CheckpointManager)


def test_the_loop_saves_every_half_hour_and_refreshes_after_two() -> None:
    manager = Day(72, advance).run()  # six hours
    routine = manager.list_checkpoints("agent-3", kind="routine")
    assert len(routine) == 3, "only the latest three are kept"
    assert [manager.load_checkpoint(one.checkpoint_id)["memory"]["cycle"] for one in routine] == [
        72,
        66,
        60,
    ]
    refreshed = manager.list_checkpoints("agent-3", kind="recovery")
    assert [manager.load_checkpoint(one.checkpoint_id)["memory"]["cycle"] for one in refreshed] == [
        72,
        48,
        24,
    ]


def test_the_loop_takes_a_recovery_point_of_every_error_and_goes_on() -> None:
    def work(day: Day) -> None:
        advance(day)
        if day.cycle in (3, 14):
            raise OSError("the mailbox is away")

    manager = Day(20, work).run()
    recovered = manager.list_checkpoints("agent-3", kind="recovery")
    assert [one.metadata["error"] for one in recovered] == ["OSError", "OSError"]
    assert manager.memory == {"cycle": 20}


def test_the_loop_goes_back_when_it_drifts_and_does_so_once() -> None:
    def work(day: Day) -> None:
        advance(day)
        manager = day.checkpoints
        if 33 <= day.cycle < 43:
            manager.current_task.update(progress_percentage=3.2, action="search kelp")
            manager.memory["nonsense"] = True

    manager = Day(50, work).run()
    restored = [one for one in manager.transactions() if one.operation == "restore"]
    assert len(restored) == 1 and restored[0].status == "success"
    assert "nonsense" not in manager.memory
    assert manager.memory["cycle"] == 50


def test_the_loop_does_not_restore_for_ever_what_stays_wrong() -> None:
    def work(day: Day) -> None:
        advance(day)
        day.checkpoints.current_task["progress_percentage"] = 40

    manager = Day(60, work).run()
    restored = [one for one in manager.transactions() if one.operation == "restore"]
    assert 0 < len(restored) <= 60 // 30, "each takes as much evidence as the first"


def test_a_risky_operation_is_restored_by_hand() -> None:
    checkpoint_manager = ResilientCheckpointManager("agent-3")
    checkpoint_manager.memory["n"] = 1

    def risky() -> None:
        pre_op_checkpoint = checkpoint_manager.create_checkpoint("pre_operation")
        try:
            checkpoint_manager.memory["n"] = 2
            raise ValueError("no")
        except Exception:
            checkpoint_manager.restore_checkpoint(pre_op_checkpoint)
            raise

    with pytest.raises(ValueError):
        risky()
    assert checkpoint_manager.memory == {"n": 1}
    checkpoint_manager.close()


def test_pre_operation_checkpoints_are_kept_until_the_operation_succeeds() -> None:
    with ResilientCheckpointManager("agent-3") as manager:
        with pytest.raises(ValueError), manager.operation("deploy"):
            raise ValueError
        assert "pre_operation" in kinds(manager)
        with manager.operation("deploy"):
            pass
        manager.create_checkpoint()
        assert "pre_operation" not in kinds(manager)


def test_custom_state_collection() -> None:
    class CustomCheckpointManager(ResilientCheckpointManager):
        def _get_custom_state(self) -> dict[str, Any]:
            return {"special_data": [1, 2], "additional_context": "kelp"}

        def _get_operational_context(self) -> dict[str, Any]:
            context = super()._get_operational_context()
            context.update({"custom_fields": self._get_custom_state()})
            return context

    with CustomCheckpointManager("agent-3") as manager:
        state = manager.load_checkpoint(manager.create_checkpoint())
    assert state["operational_context"]["custom_fields"]["special_data"] == [1, 2]


def test_enhanced_drift_detection() -> None:
    class CustomCheckpointManager(ResilientCheckpointManager):
        odd = False

        def detect_drift(self) -> bool:
            standard_drift = super().detect_drift()
            custom_drift = self._detect_custom_drift()
            return standard_drift or custom_drift

        def _detect_custom_drift(self) -> bool:
            return self.odd

    with CustomCheckpointManager("agent-3") as manager:
        assert manager.detect_drift() is False
        manager.odd = True
        assert manager.detect_drift() is True


def test_what_the_document_says_to_check_when_restoring_fails_is_said_by_the_error(
    tmp_path: Path,
) -> None:
    with ResilientCheckpointManager("agent-3", f"file://{tmp_path}/runs") as manager:
        checkpoint_id = manager.create_checkpoint()
        with pytest.raises(NotFoundError, match="no checkpoint"):
            manager.restore_checkpoint("missing")
        (path,) = (tmp_path / "runs" / "agent-3").iterdir()
        with pytest.raises(UsageError, match="belongs to run 'agent-3'"):
            other = ResilientCheckpointManager("agent-33", manager.storage)
            other.restore_checkpoint(checkpoint_id)
    path.write_bytes(path.read_bytes().replace(b"memory", b"mammon"))
    with (
        ResilientCheckpointManager("agent-3", f"file://{tmp_path}/runs") as manager,
        pytest.raises(CorruptError),
    ):
        manager.restore_checkpoint(checkpoint_id)


def test_an_unreadable_memory_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text("precious")
    with ResilientCheckpointManager("agent-3") as manager:
        manager.register_provider("memory_file", memory.read_text, memory.write_text)
        whole = manager.create_checkpoint()
        memory.write_bytes(b"\xff\xfe")
        partial = manager.create_checkpoint()
        with pytest.raises(UsageError, match="partial"):
            manager.restore_checkpoint(partial)
        assert manager.get_latest_checkpoint() == whole
        manager.restore_checkpoint(whole)
    assert memory.read_text() == "precious"
