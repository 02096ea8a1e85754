"""What people know from Kaizen's checkpoint and resume: its snippets, and what its tests promise.

The snippets stand as they are; only imports differ, and the model that answers as ``ollama`` is a
scripted one.
"""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surehold import (
    AgentState,
    AutonomousConfig,
    BaseAutonomousAgent,
    FilesystemStorage,
    HookEvent,
    HookManager,
    HookResult,
    InputField,
    OutputField,
    Reply,
    Signature,
    StateManager,
    ToolCall,
    tool,
)
from surehold.agents.agent import agent as agent_module
from surehold.agents.models import model as models
from surehold.agents.models.model import Message
from surehold.testing.scripted import ScriptedModel

ANSWER = '{"result": "all of it is done"}'


class TaskSignature(Signature):
    """Perform the task."""

    task: str = InputField("what to do")
    result: str = OutputField("what came of it")


class Ollama:
    """What the model says, and the cycle in which it is away."""

    def __init__(self, cycles: int = 7) -> None:
        self.cycles = cycles
        self.away_at: int | None = None
        self.calls = 0

    def __call__(self, messages: Sequence[Message]) -> Reply | str:
        self.calls += 1
        if messages[-1]["content"].startswith("Make a plan"):
            return '{"steps": ["look", "write"]}'
        turn = sum(message["role"] == "assistant" for message in messages) + 1
        if turn == self.away_at:
            raise ConnectionError("ollama is away")
        if turn >= self.cycles:
            return ANSWER
        return Reply(tool_calls=(ToolCall(f"c{turn}", "look_up", {"page": turn}),))


@tool(read_only=True)
def look_up(page: int) -> str:
    """Look a page up."""
    return f"page {page} " + "of the long book " * 20


@pytest.fixture
def ollama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Ollama:
    script = Ollama()

    def factory(model: str, **settings: Any) -> ScriptedModel:
        return ScriptedModel(script, name=model)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "_factories", {"ollama": factory})
    monkeypatch.setattr(agent_module, "_warned", set())
    monkeypatch.setenv("SUREHOLD_MODEL", "ollama:llama3.2")
    return script


def agent_with(state_manager: StateManager | None, config: AutonomousConfig, **more: Any) -> Any:
    return BaseAutonomousAgent(
        config=config,
        signature=TaskSignature(),
        state_manager=state_manager,
        tools=[look_up],
        report=lambda line: None,
        **more,
    )


# The snippets


async def test_quick_reference(ollama: Ollama) -> None:
    # Configure with automatic checkpointing
    config = AutonomousConfig(
        max_cycles=10,
        checkpoint_frequency=5,  # Save every 5 steps
        resume_from_checkpoint=True,  # Resume on restart
        llm_provider="ollama",
        model="llama3.2",
    )

    # Create state manager
    storage = FilesystemStorage(
        base_dir=".kaizen/checkpoints",
        compress=True,  # Enable gzip compression (>50% size reduction)
    )
    state_manager = StateManager(
        storage=storage,
        checkpoint_frequency=5,
        retention_count=10,  # Keep only latest 10 checkpoints
    )

    # Create agent with checkpointing
    agent = BaseAutonomousAgent(
        config=config,
        signature=TaskSignature(),
        state_manager=state_manager,
    )
    ollama.cycles = 1

    # Run with automatic checkpointing and resume
    result = await agent._autonomous_loop("Perform a complex task")

    assert (result.status, result.answer) == ("completed", {"result": "all of it is done"})
    (file,) = Path(".kaizen/checkpoints/autonomous_agent").glob("*.jsonl.gz")
    assert b"Perform a complex task" in gzip.decompress(file.read_bytes())
    state = await state_manager.load_checkpoint(
        (await state_manager.list_checkpoints("autonomous_agent"))[0].checkpoint_id
    )
    assert isinstance(state, AgentState) and state.model == "llama3.2"


async def test_automatic_checkpointing(ollama: Ollama) -> None:
    # Checkpoint every 5 steps OR every 30 seconds (whichever comes first)
    config = AutonomousConfig(checkpoint_frequency=5)
    state_manager = StateManager(checkpoint_interval=30.0)

    result = await agent_with(state_manager, config).run("go")
    assert result.status == "completed"
    steps = [c.step_number for c in await state_manager.list_checkpoints("autonomous_agent")]
    assert steps == [9, 5, 0]  # a plan, seven cycles and the end
    await state_manager.close()


async def test_save_state_every_m_seconds(ollama: Ollama) -> None:
    storage = FilesystemStorage(base_dir=".kaizen/checkpoints")
    state_manager = StateManager(
        storage=storage,
        checkpoint_interval=0.02,  # stands for 30 seconds
    )

    @tool(read_only=True, name="look_up")
    def slow(page: int) -> str:
        time.sleep(0.03)
        return "read"

    agent = BaseAutonomousAgent(
        config=AutonomousConfig(checkpoint_frequency=1000, planning_enabled=False),
        state_manager=state_manager,
        tools=[slow],
    )
    await agent.run("go")
    steps = [c.step_number for c in await state_manager.list_checkpoints("autonomous_agent")]
    assert steps[0] == 8 and len(steps) >= 7  # each of the six cycles with a tool was due


async def test_resume_from_checkpoint(ollama: Ollama) -> None:
    config = AutonomousConfig(
        resume_from_checkpoint=True,  # Load latest checkpoint on start
    )
    state_manager = StateManager(storage=FilesystemStorage(base_dir=".kaizen/checkpoints"))
    ollama.away_at = 6
    first = await agent_with(state_manager, config).run("Perform a complex task")
    assert first.status == "failed"
    ollama.away_at = None
    agent = agent_with(state_manager, config)

    # Agent automatically loads latest checkpoint for agent_id
    # If no checkpoint found, starts fresh
    result = await agent._autonomous_loop("Continue task")

    assert (result.status, result.run_id) == ("completed", first.run_id)
    assert result.task == "Perform a complex task"
    assert agent.state.conversation_history[-2]["role"] == "tool"
    said = [m["content"] for m in agent.state.conversation_history if m["role"] == "user"]
    assert said == ["Perform a complex task", "Continue task"]
    assert ollama.calls == 1 + 5 + 1 + 2  # the plan, five cycles, the failure, and the two left


async def test_compression(ollama: Ollama) -> None:
    storage = FilesystemStorage(
        base_dir=".kaizen/checkpoints",
        compress=True,  # gzip compression
    )
    plain = FilesystemStorage(base_dir=".kaizen/plain")
    sizes = []
    for each, place in ((storage, "checkpoints"), (plain, "plain")):
        ollama.cycles = 40
        manager = StateManager(storage=each)
        await agent_with(manager, AutonomousConfig(max_cycles=40)).run("go")
        each.close()
        files = Path(".kaizen", place).rglob("*.jsonl*")
        sizes.append(sum(file.stat().st_size for file in files))
    assert sizes[0] < sizes[1] / 2


async def test_retention_policy(ollama: Ollama) -> None:
    storage = FilesystemStorage(base_dir=".kaizen/checkpoints")
    state_manager = StateManager(
        storage=storage,
        retention_count=3,  # Keep only 3 most recent
    )
    config = AutonomousConfig(checkpoint_frequency=1)
    await agent_with(state_manager, config, agent_id="one").run("go")
    await agent_with(state_manager, config, agent_id="two").run("go")
    for name in ("one", "two"):
        listed = await state_manager.list_checkpoints(name)
        assert [c.step_number for c in listed] == [9, 8, 7]


async def test_hook_integration(ollama: Ollama, capsys: pytest.CaptureFixture[str]) -> None:
    storage = FilesystemStorage(base_dir=".kaizen/checkpoints")
    hook_manager = HookManager()

    async def pre_checkpoint_hook(context):  # type: ignore[no-untyped-def]
        """Validate or modify state before save"""
        agent_id = context.data.get("agent_id")
        step = context.data.get("step_number")
        print(f"About to save checkpoint for {agent_id} at step {step}")
        return HookResult(success=True)

    hook_manager.register(HookEvent.PRE_CHECKPOINT_SAVE, pre_checkpoint_hook)

    async def post_checkpoint_hook(context):  # type: ignore[no-untyped-def]
        """Log or notify after checkpoint save"""
        checkpoint_id = context.data.get("checkpoint_id")
        step = context.data.get("step_number")
        print(f"Saved checkpoint {checkpoint_id} at step {step}")
        return HookResult(success=True)

    hook_manager.register(HookEvent.POST_CHECKPOINT_SAVE, post_checkpoint_hook)

    state_manager = StateManager(storage=storage, hook_manager=hook_manager)

    ollama.cycles = 1
    await agent_with(state_manager, AutonomousConfig()).run("go")
    ids = [c.checkpoint_id for c in await state_manager.list_checkpoints("autonomous_agent")]
    assert capsys.readouterr().out.splitlines() == [
        "About to save checkpoint for autonomous_agent at step 0",
        f"Saved checkpoint {ids[1]} at step 0",
        "About to save checkpoint for autonomous_agent at step 3",
        f"Saved checkpoint {ids[0]} at step 3",
    ]


async def test_long_running_autonomous_agent(ollama: Ollama) -> None:
    signature = TaskSignature()
    ollama.cycles = 1
    config = AutonomousConfig(
        max_cycles=50,  # Long-running
        checkpoint_frequency=5,  # Checkpoint every 5 steps
        resume_from_checkpoint=True,  # Resume on restart
    )

    storage = FilesystemStorage(compress=True)
    state_manager = StateManager(
        storage=storage,
        checkpoint_frequency=5,
        retention_count=10,  # Keep latest 10
    )

    agent = BaseAutonomousAgent(
        config=config,
        signature=signature,
        state_manager=state_manager,
    )

    # Runs with automatic checkpointing
    # Resumes automatically if interrupted
    result = await agent._autonomous_loop("Complex long-running task")
    assert (result.status, result.total_cycles) == ("completed", 50)


async def test_development_with_quick_iterations(ollama: Ollama) -> None:
    # Frequent checkpoints for debugging
    config = AutonomousConfig(
        max_cycles=10,
        checkpoint_frequency=1,  # Checkpoint every step
        resume_from_checkpoint=True,
    )

    storage = FilesystemStorage(compress=False)  # Disable compression for speed
    state_manager = StateManager(
        storage=storage,
        checkpoint_frequency=1,
        retention_count=5,  # Keep only 5 recent
    )
    await agent_with(state_manager, config).run("go")
    listed = await state_manager.list_checkpoints("autonomous_agent")
    assert [c.step_number for c in listed] == [9, 8, 7, 6, 5]


async def test_production_with_error_recovery(ollama: Ollama) -> None:
    # Balance between performance and safety
    config = AutonomousConfig(
        max_cycles=100,
        checkpoint_frequency=10,  # Every 10 steps
        checkpoint_interval_seconds=300.0,  # OR every 5 minutes
        resume_from_checkpoint=True,
    )

    storage = FilesystemStorage(compress=True)  # Compression for storage efficiency
    state_manager = StateManager(
        storage=storage,
        checkpoint_frequency=10,
        checkpoint_interval=300.0,
        retention_count=20,  # Keep 20 checkpoints for safety
    )
    ollama.cycles, ollama.away_at = 30, 20
    assert (await agent_with(state_manager, config).run("go")).status == "failed"
    ollama.away_at = None
    result = await agent_with(state_manager, config).run("go")
    assert (result.status, result.cycles_used) == ("completed", 30)
    assert ollama.calls == 1 + 30 + 1
    listed = await state_manager.list_checkpoints("autonomous_agent")
    # The failure is saved besides what was due; the count goes on from there.
    assert [c.step_number for c in listed] == [32, 30, 20, 20, 10, 0]


# What its tests promise


async def test_state_is_captured_and_restored_round_trip(ollama: Ollama) -> None:
    agent = agent_with(None, AutonomousConfig())
    await agent.run("go")
    agent.memory["fact"] = "kept"
    state = agent._capture_state()
    other = agent_with(None, AutonomousConfig())
    other._restore_state(state)
    assert other._capture_state() == state
    assert other.memory == {"fact": "kept"} and other.plan == agent.plan


async def test_resume_not_found_starts_fresh(ollama: Ollama) -> None:
    config = AutonomousConfig(resume_from_checkpoint=True)
    manager = StateManager(storage=FilesystemStorage(base_dir=".kaizen/checkpoints"))
    assert (await agent_with(manager, config).run("go")).status == "completed"


async def test_compressed_and_uncompressed_checkpoints_coexist(ollama: Ollama) -> None:
    config = AutonomousConfig(resume_from_checkpoint=True, checkpoint_frequency=1)
    ollama.away_at = 4
    statuses, calls = [], []
    for compress in (False, True):
        storage = FilesystemStorage(base_dir=".kaizen/checkpoints", compress=compress)
        result = await agent_with(StateManager(storage=storage), config).run("go")
        statuses.append(result.status)
        calls.append(ollama.calls)
        storage.close()
        ollama.away_at = None
    assert statuses == ["failed", "completed"]
    assert calls == [5, 9]
    names = {path.suffix for path in Path(".kaizen/checkpoints").rglob("*.jsonl*")}
    assert names == {".jsonl", ".gz"}


async def test_concurrent_agents_share_one_storage(ollama: Ollama) -> None:
    manager = StateManager(storage=FilesystemStorage(base_dir=".kaizen/checkpoints"))
    config = AutonomousConfig(checkpoint_frequency=1, enable_interrupts=False)
    agents = [agent_with(manager, config, agent_id=f"agent-{n}") for n in range(4)]
    results = await asyncio.gather(*(agent.run(f"task {n}") for n, agent in enumerate(agents)))
    assert [result.status for result in results] == ["completed"] * 4
    assert [result.task for result in results] == [f"task {n}" for n in range(4)]
    for number in range(4):
        assert len(await manager.list_checkpoints(f"agent-{number}")) == 10


async def test_hooks_that_fail_do_not_fail_the_checkpoint(ollama: Ollama) -> None:
    hooks = HookManager()

    async def broken(context: Any) -> HookResult:
        raise ValueError("a hook of the user's")

    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, broken)
    hooks.register(HookEvent.POST_CHECKPOINT_SAVE, broken)
    storage = FilesystemStorage(base_dir=".kaizen/checkpoints")
    manager = StateManager(storage=storage, hook_manager=hooks)
    assert (await agent_with(manager, AutonomousConfig()).run("go")).status == "completed"
    assert len(await manager.list_checkpoints("autonomous_agent")) == 3
