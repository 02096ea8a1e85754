"""Checkpoint files of other systems: what they hold is found again as runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from surehold import AgentState, CheckpointManager, State
from surehold.errors import ConflictError, DecodeError, NotFoundError
from surehold.integrations.checkpoint_files import ImportedRun, import_checkpoint_files


def kaizen(step: int, **more: Any) -> dict[str, Any]:
    return {
        "checkpoint_id": f"ckpt_{step:012x}",
        "agent_id": "researcher",
        "timestamp": f"2026-11-16T10:{step:02}:00",
        "step_number": step,
        "conversation_history": [{"role": "user", "content": f"turn {n}"} for n in range(step)],
        "budget_spent_usd": 0.5 * step,
        "status": "running",
        "metadata": {},
        **more,
    }


def fleet(round_: int, status: str = "in_progress") -> dict[str, Any]:
    return {
        "checkpoint_id": f"00000000-0000-0000-0000-{round_:012}",
        "workflow_id": "workflow_abc123",
        "timestamp": f"2026-11-16T11:0{round_}:00+00:00",
        "current_round": round_,
        "stall_count": 0,
        "last_response": f"answer {round_}",
        "context": {"user_query": "sales"},
        "metadata": {"status": status, "round": round_},
    }


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    return directory


def test_kaizens_files_become_the_history_of_an_agent(files: Path) -> None:
    # The names say nothing about the order, and one file is compressed.
    (files / "ckpt_b.jsonl").write_text(json.dumps(kaizen(1)) + "\n")
    (files / "ckpt_a.jsonl").write_text(json.dumps(kaizen(3)) + "\n")
    (files / "ckpt_c.jsonl.gz").write_bytes(gzip.compress(json.dumps(kaizen(2)).encode()))
    with CheckpointManager("memory://") as manager:
        assert import_checkpoint_files(files, manager) == [ImportedRun("researcher", 3)]
        newest = manager.resume_from_latest("researcher")
        assert isinstance(newest, AgentState)
        assert (newest.step_number, newest.budget_spent_usd) == (3, 1.5)
        assert [turn["content"] for turn in newest.conversation_history] == [
            "turn 0",
            "turn 1",
            "turn 2",
        ]
        steps = [one.step_number for one in manager.list_checkpoints("researcher")]
        assert steps == [3, 2, 1]


def test_agenticfleets_files_become_the_rounds_of_a_workflow(files: Path) -> None:
    for round_, status in ((1, "in_progress"), (2, "error")):
        (files / f"{round_}.json").write_text(json.dumps(fleet(round_, status), indent=2))
    with CheckpointManager("memory://") as manager:
        assert import_checkpoint_files(files, manager) == [ImportedRun("workflow_abc123", 2)]
        newest = manager.resume_from_latest("workflow_abc123")
        assert isinstance(newest, State)
        assert (newest.step, newest.status) == (2, "failed")
        assert newest["last_response"] == "answer 2"
        assert newest["context"] == {"user_query": "sales"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"agent_id": "a"}', "\x00"])
def test_one_bad_file_stops_the_import_before_anything_is_written(files: Path, text: str) -> None:
    (files / "a.json").write_text(json.dumps(fleet(1)))
    (files / "b.json").write_text(text)
    with CheckpointManager("memory://") as manager:
        with pytest.raises(DecodeError, match=r"b\.json"):
            import_checkpoint_files(files, manager)
        assert manager.list_checkpoints() == []


def test_a_run_that_exists_is_not_mixed_with_the_files(files: Path) -> None:
    (files / "a.json").write_text(json.dumps(fleet(1)))
    with CheckpointManager("memory://") as manager:
        import_checkpoint_files(files, manager)
        with pytest.raises(ConflictError, match="workflow_abc123"):
            import_checkpoint_files(files, manager)
        assert len(manager.list_checkpoints("workflow_abc123")) == 1


def test_an_empty_directory_is_an_error(files: Path) -> None:
    with pytest.raises(NotFoundError, match="no checkpoint files"):
        import_checkpoint_files(files, "memory://")
