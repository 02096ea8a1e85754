"""What an agent and a run are told: of empty checkpoints, and of a lease that ended."""

from __future__ import annotations

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


def test_no_other_process_is_named_when_the_storage_failed() -> None:
    error = taken_over("r", StorageUnavailableError("the primary is away"))
    assert "another process" not in error.message
    assert "the primary is away" in error.message
    assert "taken over by another process" in taken_over("r", ConflictError("newer")).message
