"""What an agent of the seed's kind keeps, continues from and tells."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surehold import (
    AgentState,
    AutonomousConfig,
    BaseAutonomousAgent,
    FilesystemStorage,
    Message,
    Reply,
    StateManager,
    ToolCall,
    tool,
)
from surehold.testing.scripted import ScriptedModel


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@tool(read_only=True)
def look_up(page: int) -> str:
    """Look a page up."""
    return "kelp is a brown alga " * 200


class Working(ScriptedModel):
    """A model that looks pages up, and that a network may cut off."""

    def __init__(self, answer: str, fails_at: int | None = None, cycles: int = 6) -> None:
        self.calls = 0

        def script(messages: Sequence[Message]) -> Reply | str:
            self.calls += 1
            turn = sum(one["role"] == "assistant" for one in messages)
            if turn == fails_at:
                raise ConnectionError("no network")
            if turn < cycles:
                return Reply(tool_calls=(ToolCall(f"c{turn}", "look_up", {"page": turn}),))
            return answer

        super().__init__(script)


def agent_with(manager: StateManager, model: ScriptedModel, **settings: Any) -> BaseAutonomousAgent:
    config = AutonomousConfig(checkpoint_frequency=1, planning_enabled=False, **settings)
    return BaseAutonomousAgent(
        config=config,
        state_manager=manager,
        model=model,
        tools=[look_up],
        report=lambda line: None,
    )


async def test_memory_that_is_set_before_a_run_is_saved_with_it() -> None:
    manager = StateManager("sqlite:///r.db")
    agent = agent_with(manager, Working("done"))
    agent.memory["style"] = "short"
    await agent._autonomous_loop("Perform a complex task")
    (newest, *_) = await manager.list_checkpoints("autonomous_agent")
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(state, AgentState)
    assert state.memory_contents == {"style": "short"}
    await manager.close()


@pytest.mark.parametrize("fails_at", [5, None])
async def test_an_agent_is_debugged_from_a_specific_state(fails_at: int | None) -> None:
    manager = StateManager("sqlite:///r.db")
    await agent_with(manager, Working("OLD", fails_at)).run("Perform a complex task")
    saved = await manager.list_checkpoints("autonomous_agent")
    (older,) = (one for one in saved if one.step_number == 3)
    model = Working("NEW")
    result = await agent_with(manager, model).run(checkpoint=older.checkpoint_id)
    assert (result.status, result.answer, model.calls) == ("completed", "NEW", 4)
    await manager.close()


async def test_the_metrics_of_a_manager_count_resumes_by_cause() -> None:
    manager = StateManager("sqlite:///r.db")
    await agent_with(manager, Working("done", 3)).run("Perform a complex task")
    agent = agent_with(manager, Working("done"), resume_from_checkpoint=True)
    result = await agent._autonomous_loop("Continue task")
    assert result.status == "completed"
    (cause,) = manager.metrics.snapshot()["resumes"].items()
    assert cause == ("failure", {"tried": 1, "succeeded": 1})
    await manager.close()


async def test_encrypted_checkpoints_are_compressed_too() -> None:
    sizes = []
    for place, key in (("plain", None), ("secret", os.urandom(32))):
        storage = FilesystemStorage(base_dir=place, compress=True)
        manager = StateManager(storage, encryption_key=key)
        await agent_with(manager, Working("done", cycles=12), max_cycles=20).run("go")
        await manager.close()
        storage.close()
        sizes.append(sum(file.stat().st_size for file in Path(place).rglob("*.jsonl*")))
    assert sizes[1] < 2.5 * sizes[0]
