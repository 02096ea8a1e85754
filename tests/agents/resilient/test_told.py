"""What an agent and a run are told: of empty checkpoints, and of a lease that ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehold import ResilientCheckpointManager
from surehold.engine.runs.open_run import taken_over
from surehold.errors import ConflictError, StorageUnavailableError


def test_an_agent_that_saves_only_empty_dicts_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ResilientCheckpointManager("agent-3", "memory://") as manager:
        for _ in range(3):
            manager.create_checkpoint("routine")
    told = [one for one in caplog.messages if "without any state" in one]
    assert len(told) == 1
    assert "register_provider" in told[0]


def test_a_process_that_restores_first_is_not_warned_of_its_empty_state(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for cycle in range(2):
        with ResilientCheckpointManager("agent-3", f"sqlite:///{tmp_path}/runs.db") as manager:
            if latest := manager.get_latest_checkpoint("routine"):
                manager.restore_checkpoint(latest)
            manager.memory["cycle"] = cycle
            manager.create_checkpoint("routine")
    assert "without any state" not in caplog.text


def test_no_other_process_is_named_when_the_storage_failed() -> None:
    error = taken_over("r", StorageUnavailableError("the primary is away"))
    assert "another process" not in error.message
    assert "the primary is away" in error.message
    assert "taken over by another process" in taken_over("r", ConflictError("newer")).message
