"""Agent states built anew for every save, their metadata, and hooks that change them in place."""

from __future__ import annotations

from typing import Any

import pytest

from surehold import (
    AgentState,
    CheckpointManager,
    HookEvent,
    HookManager,
    HookResult,
    MemoryStorage,
    Rules,
    State,
)


def test_states_built_anew_for_every_save_are_one_run_until_it_is_completed() -> None:
    manager = CheckpointManager("memory://")
    ids = [
        manager.save_checkpoint(
            AgentState(agent_id="worker", step_number=step, memory_contents={"step": step})
        )
        for step in range(1, 6)
    ]
    listed = manager.list_checkpoints("worker")
    assert [one.checkpoint_id for one in reversed(listed)] == ids
    assert [one.parent_checkpoint_id for one in reversed(listed)] == [None, *ids[:-1]]
    assert len({one.run_id for one in listed}) == 1
    manager.save_checkpoint(AgentState(agent_id="worker", step_number=6, status="completed"))
    assert manager.resume_from_latest("worker") is None, "the run is completed"
    assert [entry.checkpoint.step for entry in manager.history(listed[0].run_id)] == [*range(1, 7)]
    manager.save_checkpoint(AgentState(agent_id="worker", step_number=7))
    assert len({one.run_id for one in manager.list_checkpoints("worker")}) == 2


def test_states_built_anew_continue_the_run_that_their_manager_resumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    first = CheckpointManager(storage)
    first.save_checkpoint(AgentState(agent_id="worker", step_number=1))
    manager = CheckpointManager(storage)
    resumed = manager.resume_from_latest("worker")
    assert isinstance(resumed, AgentState)
    for step, status in ((2, "running"), (3, "completed")):
        manager.save_checkpoint(AgentState(agent_id="worker", step_number=step, status=status))
    listed = manager.list_checkpoints("worker")
    assert [(one.run_id, one.step) for one in listed] == [(resumed.run_id, n) for n in (3, 2, 1)]
    assert manager.resume_from_latest("worker") is None, "the run is completed"
    assert not caplog.records


def test_a_run_begun_beside_an_unfinished_one_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    first = AgentState(agent_id="worker", step_number=9)
    CheckpointManager(storage).save_checkpoint(first)
    manager = CheckpointManager(storage, retention=Rules(keep_last=1, group_by="name"))
    for step in (1, 2, 3):
        manager.save_checkpoint(AgentState(agent_id="worker", step_number=step))
    (warned,) = caplog.messages
    assert f"its run {first.run_id} is unfinished at step 9" in warned
    assert "resume_from_latest('worker')" in warned
    assert [one.step for one in manager.list_checkpoints("worker")] == [3, 9]


def test_a_state_that_starts_over_begins_a_run() -> None:
    manager = CheckpointManager("memory://")
    one, two = AgentState(agent_id="worker"), AgentState(agent_id="worker")
    manager.save_checkpoint(one)
    manager.save_checkpoint(two)
    assert one.run_id != two.run_id
    one.step_number = two.step_number = 1
    manager.save_checkpoint(one)
    manager.save_checkpoint(two)
    assert one.run_id != two.run_id


def test_an_agents_metadata_is_found_by_queries() -> None:
    manager = CheckpointManager("memory://")
    metadata = {"customer": "acme", "trace": [1, 2], "n": 3}
    state = AgentState(agent_id="worker", metadata=metadata)
    checkpoint_id = manager.save_checkpoint(state)
    manager.save_checkpoint(AgentState(agent_id="other", metadata={"customer": "none"}))
    (found,) = manager.list_checkpoints(metadata={"customer": "acme"})
    assert found.checkpoint_id == checkpoint_id
    assert found.metadata == {"customer": "acme", "n": 3}
    assert manager.load_checkpoint(checkpoint_id).metadata == metadata


def changing(change: Any) -> CheckpointManager:
    hooks = HookManager()

    def hook(context: Any) -> Any:
        return change(context.data["state"])

    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, hook)
    return CheckpointManager("memory://", hook_manager=hooks)


def test_a_hook_that_changes_an_agents_state_in_place_is_honoured() -> None:
    def redact(state: AgentState) -> HookResult:
        state.memory_contents["key"] = "***"
        return HookResult(success=True)

    manager = changing(redact)
    state = AgentState(agent_id="worker", memory_contents={"key": "sk-123"})
    loaded = manager.load_checkpoint(manager.save_checkpoint(state))
    assert isinstance(loaded, AgentState)
    assert loaded.memory_contents == {"key": "***"}
    assert state.memory_contents == {"key": "sk-123"}, "the live state is left alone"


def test_what_a_failing_hook_did_to_the_state_is_not_saved() -> None:
    def broken(state: AgentState) -> HookResult:
        state.memory_contents.clear()
        raise ValueError("no")

    manager = changing(broken)
    state = AgentState(agent_id="worker", memory_contents={"n": 1})
    loaded = manager.load_checkpoint(manager.save_checkpoint(state))
    assert isinstance(loaded, AgentState) and loaded.memory_contents == {"n": 1}


def test_a_state_that_hooks_leave_alone_is_saved_as_it_is() -> None:
    manager = changing(lambda state: HookResult(success=True))
    checkpoint_id = manager.save_checkpoint(State.new({"n": 1}, run_id="r"))
    assert manager.load_checkpoint(checkpoint_id)["n"] == 1
