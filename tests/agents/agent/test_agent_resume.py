"""Agents that go on: what comes back, what is not repeated, and what is said about it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import Counted, build, call, manager_in, turns

from surehold import AgentState, HookEvent, HookManager, HookResult, MetricsHook, StateManager
from surehold.agents.agent import agent as agent_module
from surehold.agents.models import Reply, ToolCall
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.engine.metrics import Metrics
from surehold.errors import LeaseHeldError, UsageError, VetoError
from surehold.testing.scripted import ScriptedModel

PLAN = '{"steps": ["look", "write"]}'


class Flaky:
    """A script whose model is away from a message on, until it is mended."""

    def __init__(self, away_at: int, *replies: Any) -> None:
        self.away_at = away_at
        self.script = turns(*replies, plan=PLAN)

    def __call__(self, messages: Any) -> Any:
        if sum(m["role"] == "assistant" for m in messages) == self.away_at:
            raise ConnectionError("away")
        return self.script(messages)


def lookups(count: int) -> list[Any]:
    return [call("search", query=str(number)) for number in range(count)]


@pytest.mark.parametrize("frequency", [1, 5, 100])
async def test_a_resume_repeats_no_model_call_and_no_tool(frequency: int, tmp_path: Path) -> None:
    manager, counted, log = manager_in(tmp_path), Counted(), tmp_path / "calls"
    flaky = Flaky(7, *lookups(9), "done")
    settings: dict[str, Any] = {"planning_enabled": True, "checkpoint_frequency": frequency}
    first = await build(flaky, manager, tools=[counted.search], log=log, **settings).run("go")
    assert (first.status, first.cycles_used) == ("failed", 7)
    flaky.away_at = 99
    second = await build(flaky, manager, tools=[counted.search], log=log, **settings).run("go")
    assert (second.status, second.cycles_used, second.run_id) == ("completed", 10, first.run_id)
    assert counted.calls == [str(number) for number in range(9)]
    assert len(log.read_text().splitlines()) == 11  # the plan and ten cycles
    assert [item["task"] for item in second.plan] == ["look", "write"]


async def test_what_comes_back_is_exact(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(3, *lookups(3), "done")
    agent = build(flaky, manager, tools=[counted.search], planning_enabled=True)
    await agent.run("go")
    before = agent.state
    before.memory_contents["x"] = 1
    newest = (await manager.list_checkpoints("researcher"))[0]
    saved = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(saved, AgentState)
    for name in (
        "conversation_history",
        "pending_actions",
        "completed_actions",
        "budget_spent_usd",
        "tool_usage_counts",
        "tool_results_cache",
        "extra",
        "model",
        "step_number",
        "run_id",
    ):
        assert getattr(saved, name) == getattr(before, name), name
    assert "x" not in saved.memory_contents


@pytest.mark.parametrize("frequency", [1, 3, 100])
@pytest.mark.parametrize("away_at", [0, 2, 5])
async def test_after_a_resume_the_state_is_that_of_a_run_that_was_never_stopped(
    frequency: int, away_at: int, tmp_path: Path
) -> None:
    states = []
    for name, away in (("whole", 99), ("resumed", away_at)):
        hooks, agents = HookManager(), []
        hooks.register(HookEvent.POST_TOOL_USE, lambda context: None)
        manager = manager_in(tmp_path / name, hook_manager=hooks)

        @tool(idempotent=True)
        def search(query: str) -> dict[str, int]:
            agents[-1].memory.setdefault("seen", []).append(query)  # noqa: B023
            agents[-1].update_workflow_state("flow", "running", query)  # noqa: B023
            if query == "1":
                raise ValueError("no such page")
            return {query: len(query)}

        replies = [*lookups(3), call("finish_step"), *lookups(2), "done"]
        flaky = Flaky(away, *replies)
        while True:
            agent = build(
                flaky,
                manager,
                tools=[search],
                planning_enabled=True,
                checkpoint_frequency=frequency,
            )
            agents.append(agent)
            if (await agent.run("go")).status == "completed":
                break
            flaky.away_at = 99
        found = agent.state.to_dict()
        for changing in ("checkpoint_id", "run_id", "timestamp", "parent_checkpoint_id"):
            del found[changing]
        found["usage"].pop("seconds")
        found["workflow_state"].pop("last_updated")
        for message in found["conversation_history"]:
            for one in message.get("tool_calls", ()):
                del one["id"]
            message.pop("tool_call_id", None)
        states.append(found)
    assert states[0] == states[1]
    assert states[0]["memory_contents"] == {"seen": ["0", "2", "0"]}  # a failed call leaves none
    assert states[0]["tool_usage_counts"] == {"search": 5}
    assert len(states[0]["hook_event_history"]) == 5


async def test_the_task_stays_and_other_text_joins_the_conversation_once(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(2, *lookups(4), "done")
    first = await build(flaky, manager, tools=[counted.search]).run("What is kelp?")
    flaky.away_at = 3
    for away_at in (3, 99):
        flaky.away_at = away_at
        newest = await manager.latest(first.run_id)
        assert newest is not None
        agent = build(flaky, manager, tools=[counted.search])
        result = await agent.run("Be brief", checkpoint=newest.checkpoint_id)
    assert (result.task, result.status) == ("What is kelp?", "completed")
    said = [m["content"] for m in agent.state.conversation_history if m["role"] == "user"]
    assert said == ["What is kelp?", "Be brief"]
    assert agent.state.conversation_history[5]["content"] == "Be brief"
    assert counted.calls == ["0", "1", "2", "3"]


async def test_another_task_does_not_join_an_unfinished_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = manager_in(tmp_path)
    monday = await build(Flaky(0, "kelp"), manager).run("Monday: write about kelp")
    assert monday.status == "failed"
    tuesday = await build(Flaky(99, "paid"), manager).run("Tuesday: pay the invoices")
    assert (tuesday.status, tuesday.task) == ("completed", "Tuesday: pay the invoices")
    assert tuesday.run_id != monday.run_id and monday.run_id in caplog.text
    again = await build(Flaky(99, "kelp"), manager).run("Monday: write about kelp")
    assert (again.run_id, again.status) == (monday.run_id, "completed")


async def test_read_only_tools_of_one_reply_run_in_parallel_and_are_not_repeated(
    tmp_path: Path,
) -> None:
    manager, together = manager_in(tmp_path), asyncio.Barrier(2)
    asked: list[str] = []

    @tool(read_only=True)
    async def look(name: str) -> str:
        "Look something up."
        asked.append(name)
        async with asyncio.timeout(5):
            await together.wait()
        return f"about {name}"

    both = Reply(tool_calls=tuple(ToolCall(n, "look", {"name": n}) for n in ("kelp", "reef")))
    flaky = Flaky(1, both, "done")
    first = await build(flaky, manager, tools=[look]).run("go")
    assert first.status == "failed" and sorted(asked) == ["kelp", "reef"]
    flaky.away_at = 99
    agent = build(flaky, manager, tools=[look])
    assert (await agent.run("go")).status == "completed" and len(asked) == 2
    told = [m["content"] for m in agent.state.conversation_history if m["role"] == "tool"]
    assert told == ["about kelp", "about reef"]


async def test_a_cycle_that_is_interrupted_counts_its_model_call_once(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    agents: list[BaseAutonomousAgent] = []

    @tool(read_only=True)
    async def wait() -> str:
        "Wait."
        if len(agents) == 1:
            agents[0].interrupt(mode="immediate")
            await asyncio.sleep(5)
        return "waited"

    flaky = Flaky(99, Reply(tool_calls=(ToolCall("1", "wait", {}),)), "done")
    agents.append(build(flaky, manager, tools=[wait]))
    first = await agents[0].run("go")
    assert (first.status, first.budget.model_calls) == ("interrupted", 1)
    agents.append(build(flaky, manager, tools=[wait]))
    second = await agents[1].run("go")
    assert (second.status, second.budget.model_calls) == ("completed", 2)


async def test_a_resume_says_in_one_line_what_it_saved(tmp_path: Path) -> None:
    manager, counted, said = manager_in(tmp_path), Counted(), []
    flaky = Flaky(6, *lookups(6), "done")
    settings: dict[str, Any] = {"checkpoint_frequency": 5, "max_cycles": 50}
    first = await build(flaky, manager, tools=[counted.search], **settings).run("go")
    assert said == []
    flaky.away_at = 99
    again = build(flaky, manager, tools=[counted.search], report=said.append, **settings)
    await again.run("go")
    cost, tokens = first.budget.spent_usd, first.budget.tokens
    assert len(said) == 1
    assert said[0].startswith(
        "resumed researcher at cycle 7 of 50: 6 model calls not repeated, saved"
        f" {tokens} tokens, ${cost:.2f}, "
    )


async def test_the_line_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    manager = manager_in(tmp_path)
    flaky = Flaky(0, "done")
    for _ in range(2):
        agent = BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
            state_manager=manager,
            agent_id="researcher",
            model=ScriptedModel(flaky),
        )
        await agent.run("go")
        flaky.away_at = 99
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("resumed researcher at cycle 1 of 20: 0 model calls not repeated")


async def test_after_a_completed_run_the_same_id_starts_a_fresh_one(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    first = await build(turns("one"), manager).run("go")
    second = await build(turns("two"), manager).run("go")
    assert (first.answer, second.answer) == ("one", "two")
    assert first.run_id != second.run_id


async def test_without_the_setting_a_run_is_not_resumed(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    flaky = Flaky(0, "done")
    first = await build(flaky, manager).run("go")
    flaky.away_at = 99
    second = await build(flaky, manager, resume_from_checkpoint=False).run("go")
    assert (first.status, second.status) == ("failed", "completed")
    assert first.run_id != second.run_id


async def test_two_agents_never_see_each_others_runs(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    flaky = Flaky(0, "done")
    first = await build(flaky, manager).run("go")
    assert first.status == "failed"
    config = AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True)
    for other in ("researcher2", "research", first.run_id):
        agent = BaseAutonomousAgent(
            config, state_manager=manager, agent_id=other, model=ScriptedModel(["mine"])
        )
        result = await agent.run("go")
        assert (result.answer, result.run_id != first.run_id) == ("mine", True)
    newest = (await manager.list_checkpoints("researcher"))[0]
    other_agent = BaseAutonomousAgent(
        config, state_manager=manager, agent_id="writer", model=ScriptedModel(["mine"])
    )
    with pytest.raises(UsageError, match="of agent 'researcher'"):
        await other_agent.run("go", checkpoint=newest.checkpoint_id)


async def test_resuming_under_the_default_id_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_warned", set())
    manager = manager_in(tmp_path)
    flaky = Flaky(0, "done")
    config = AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True)
    with caplog.at_level(logging.WARNING, "surehold.agent"):
        for _ in range(3):
            agent = BaseAutonomousAgent(
                config, state_manager=manager, model=ScriptedModel(flaky), report=lambda line: None
            )
            await agent.run("go")
    assert caplog.text.count("default agent_id 'autonomous_agent'") == 1


async def test_it_continues_from_the_checkpoint_that_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    script = turns(*lookups(4), "done")
    agent = build(script, manager, tools=[counted.search], checkpoint_frequency=1)
    first = await agent.run("go")
    third = next(c for c in await manager.list_checkpoints("researcher") if c.step_number == 2)
    other = turns(*lookups(3), "quite another answer")
    again = build(other, manager, tools=[counted.search], checkpoint_frequency=1)
    with caplog.at_level(logging.WARNING, "surehold.agent"):
        second = await again.run(checkpoint=third.checkpoint_id)
    assert (second.answer, second.cycles_used) == ("quite another answer", 4)
    assert second.run_id != first.run_id and second.run_id in caplog.text
    assert counted.calls == ["0", "1", "2", "3", "2"]
    assert (await build(script, manager).run(run_id=first.run_id)).answer == "done"


async def test_an_earlier_checkpoint_of_a_failed_run_asks_the_model_again(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(5, *lookups(6), "done")
    agent = build(flaky, manager, tools=[counted.search], checkpoint_frequency=1)
    first = await agent.run("go")
    assert first.status == "failed"
    third = next(c for c in await manager.list_checkpoints("researcher") if c.step_number == 3)
    calls: list[int] = []

    def sound(messages: Any) -> Any:
        calls.append(len(messages))
        return "recovered"

    said: list[str] = []
    again = build(sound, manager, tools=[counted.search])
    again.report = said.append
    second = await again.run(checkpoint=third.checkpoint_id)
    assert (second.status, second.answer, len(calls)) == ("completed", "recovered", 1)
    assert "at cycle 4 of" in said[0]


async def test_it_warns_of_effects_that_a_fork_may_repeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager, paid = manager_in(tmp_path), []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    script = turns(call("pay", amount=5), "done")
    await build(script, manager, tools=[pay], checkpoint_frequency=1).run("go")
    first = [*await manager.list_checkpoints("researcher")][-1]
    with caplog.at_level(logging.WARNING, "surehold.agent"):
        await build(script, manager, tools=[pay]).run(checkpoint=first.checkpoint_id)
    assert "may be repeated" in caplog.text and "pay" in caplog.text
    assert paid == [5, 5]


async def test_resumes_are_counted_by_their_cause(tmp_path: Path) -> None:
    hooks, other = HookManager(), Metrics()
    hooks.register_hook(MetricsHook(other))
    manager = manager_in(tmp_path, hook_manager=hooks)
    for started in (
        lambda agent: agent.run("go"),
        lambda agent: agent._autonomous_loop("go on"),
        lambda agent: agent.run(checkpoint=agent.state.checkpoint_id),
    ):
        flaky = Flaky(1, *lookups(2), "done")
        agent = build(flaky, manager, tools=[Counted().search], checkpoint_frequency=1)
        failed = await agent.run("go")
        assert failed.status == "failed"
        flaky.away_at = 99
        newest = await manager.latest("researcher")
        assert newest is not None
        agent.state.checkpoint_id = newest.checkpoint_id
        assert (await started(agent)).run_id == failed.run_id
    once = {"failure": {"tried": 3, "succeeded": 3}}
    assert manager.metrics.snapshot()["resumes"] == other.snapshot()["resumes"] == once


async def test_a_fork_of_an_agents_run_is_a_run_of_the_agent(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    script = turns(*lookups(3), "done")
    first = await build(script, manager, tools=[counted.search], checkpoint_frequency=1).run("go")
    early = next(c for c in await manager.list_checkpoints("researcher") if c.step_number == 1)
    fork = await manager.fork_from_checkpoint(early.checkpoint_id)
    assert isinstance(fork, AgentState)
    second = await build(script, manager, tools=[counted.search]).run()
    assert (second.status, second.run_id, second.cycles_used) == ("completed", fork.run_id, 4)
    assert second.run_id != first.run_id
    assert counted.calls == ["0", "1", "2", "1", "2"]


async def test_the_state_can_be_extended_by_a_subclass(tmp_path: Path) -> None:
    class Noting(BaseAutonomousAgent):
        notes: list[str]

        def _capture_state(self) -> AgentState:
            state = super()._capture_state()
            state.metadata["notes"] = [*self.notes, f"cycle {state.extra['cycles_used']}"]
            return state

        def _restore_state(self, state: AgentState) -> None:
            super()._restore_state(state)
            self.notes = state.metadata.get("notes", [])

    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(2, *lookups(3), "done")
    for _ in range(2):
        agent = build(flaky, manager, tools=[counted.search], agent=Noting, checkpoint_frequency=1)
        await agent.run("go")
        flaky.away_at = 99
    assert isinstance(agent, Noting)
    assert agent.notes == ["cycle 2", "cycle 4"]


async def test_a_state_that_a_program_saved_is_gone_on_with(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    made = AgentState(
        agent_id="researcher",
        step_number=4,
        memory_contents={"fact": "kept"},
        pending_actions=[{"task": "write", "status": "pending"}],
        budget_spent_usd=1.5,
    )
    await manager.save_checkpoint(made)
    agent = build(turns(*lookups(2), "done"), manager, tools=[counted.search])
    result = await agent.run("go", checkpoint=made.checkpoint_id)
    assert (result.status, result.run_id, result.cycles_used) == ("completed", made.run_id, 7)
    assert (agent.state.step_number, agent.memory) == (8, {"fact": "kept"})
    assert result.budget.spent_usd > 1.5
    assert [item["task"] for item in result.plan] == ["write"]
    newest = (await manager.list_checkpoints("researcher"))[0]
    assert (newest.step_number, newest.status) == (8, "completed")


async def test_hooks_are_told_of_a_resume_and_may_refuse_it(tmp_path: Path) -> None:
    hooks, heard = HookManager(), []
    hooks.register(HookEvent.PRE_RESUME, lambda context: heard.append(context.run_id))
    hooks.register(
        HookEvent.POST_RESUME, lambda context: heard.append(context.data["state"].extra["task"])
    )
    manager, flaky = manager_in(tmp_path, hook_manager=hooks), Flaky(0, "done")
    first = await build(flaky, manager).run("go")
    assert heard == []
    await build(flaky, manager).run()
    assert heard == [first.run_id, "go"]
    hooks.register(
        HookEvent.PRE_RESUME, lambda context: HookResult(False, error="not today", veto=True)
    )
    with pytest.raises(VetoError, match="not today"):
        await build(flaky, manager).run()


async def test_planning_may_be_switched_off_between_two_starts(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(1, *lookups(2), "done")
    first = await build(flaky, manager, tools=[counted.search], planning_enabled=True).run("go")
    flaky.away_at = 99
    second = await build(flaky, manager, tools=[counted.search], planning_enabled=False).run("go")
    assert (second.status, second.run_id) == ("completed", first.run_id)
    assert [item["task"] for item in second.plan] == ["look", "write"]


async def test_the_model_may_be_another_one_after_a_resume(tmp_path: Path) -> None:
    manager, counted = manager_in(tmp_path), Counted()
    flaky = Flaky(2, *lookups(3), "done")
    await build(flaky, manager, tools=[counted.search], checkpoint_frequency=9).run("go")
    flaky.away_at = 99
    agent = BaseAutonomousAgent(
        AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
        state_manager=manager,
        agent_id="researcher",
        tools=[counted.search],
        instructions="Now be quick.",
        model=ScriptedModel(flaky, name="other"),
        report=lambda line: None,
    )
    assert (await agent.run("go")).status == "completed"
    assert agent.state.model == "other"
    assert counted.calls == ["0", "1", "2"]


async def test_an_agent_that_another_one_executes_is_not_resumed(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    refused: list[BaseException] = []

    @tool(read_only=True)
    async def meddle() -> str:
        try:
            await build(turns("mine"), manager).run("go", run_id=agent.state.run_id)
        except LeaseHeldError as error:
            refused.append(error)
        return "tried"

    agent = build(turns(call("meddle"), "done"), manager, tools=[meddle])
    assert (await agent.run("go")).status == "completed"
    assert len(refused) == 1


async def test_encryption_and_retention_are_the_managers(tmp_path: Path) -> None:
    key = b"k" * 32
    manager = manager_in(tmp_path, encryption_key=key, retention_count=2)
    counted = Counted()
    flaky = Flaky(6, *lookups(7), "the secret answer")
    await build(flaky, manager, tools=[counted.search], checkpoint_frequency=1).run("go")
    assert len(await manager.list_checkpoints("researcher")) == 2
    flaky.away_at = 99
    manager = StateManager(manager.storage, encryption_key=key, retention_count=2)
    result = await build(flaky, manager, tools=[counted.search], checkpoint_frequency=1).run("go")
    assert (result.status, result.cycles_used) == ("completed", 8)
    assert counted.calls == [str(number) for number in range(7)]
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*.jsonl"))
    assert b"secret answer" not in text and b"found 3" not in text


@pytest.mark.parametrize("durable", [False, True])
async def test_memory_set_before_a_run_is_kept(tmp_path: Path, durable: bool) -> None:
    manager = manager_in(tmp_path) if durable else None
    seen: list[dict[str, Any]] = []

    @tool(read_only=True)
    def recall() -> str:
        """Recall."""
        seen.append(dict(agent.memory))
        agent.memory["of the run"] = 1
        return "fine"

    agent = build(turns(call("recall"), "done"), manager, tools=[recall])
    agent.memory["k"] = ["v"]
    agent.state.metadata["team"] = "sales"
    await agent._autonomous_loop("x")
    assert agent.memory == {"k": ["v"], "of the run": 1}
    assert agent.state.metadata["team"] == "sales"
    agent.memory["later"] = 2
    agent.memory["k"].append("w")
    await agent.run("another task")
    assert seen == [{"k": ["v"]}, {"k": ["v", "w"], "later": 2}]
    if manager is not None:
        saved = await manager.resume_from_latest(agent.state.run_id or "")
        assert isinstance(saved, AgentState) and saved.memory_contents == agent.memory


async def test_a_run_that_continues_has_the_memory_of_its_checkpoint(tmp_path: Path) -> None:
    manager, flaky = manager_in(tmp_path), Flaky(1, *lookups(2), "done")
    for value in ("first", "second"):
        agent = build(flaky, manager, tools=[Counted().search])
        agent.memory["k"] = value
        await agent.run("go")
        assert agent.memory == {"k": "first"}
        flaky.away_at = 99
