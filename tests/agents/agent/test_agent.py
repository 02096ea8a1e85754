"""Autonomous agents: cycles, plans, answers, endings, and what is in their state."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.builders.agents import Counted, build, call, manager_in, turns

from surehold import AgentConfig, AgentState, HookEvent, HookManager, HookResult, StateManager
from surehold.agents.models.model import Reply, ToolCall
from surehold.agents.tools.definition import tool
from surehold.agents.tools.signature import InputField, OutputField, Signature
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.core.policy import Triggers
from surehold.errors import StepError, UsageError
from surehold.testing.scripted import ScriptedModel

PLAN = '{"steps": ["look", "write", "check"]}'


async def test_a_run_calls_tools_until_the_model_answers(tmp_path: Path) -> None:
    counted = Counted()
    script = turns(call("search", query="kelp"), call("search", query="algae"), "kelp is an alga")
    result = await build(script, manager_in(tmp_path), tools=[counted.search]).run("What is kelp?")
    assert (result.status, result.answer, result.cycles_used) == ("completed", "kelp is an alga", 3)
    assert counted.calls == ["kelp", "algae"]
    assert result["total_cycles"] == 20 and result.task == "What is kelp?"
    with pytest.raises(KeyError):
        result["nothing"]


async def test_without_a_state_manager_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    counted = Counted()
    agent = build(turns(call("search", query="kelp"), "done"), tools=[counted.search])
    assert (await agent.run("go")).answer == "done"
    assert list(tmp_path.iterdir()) == []


async def test_what_a_manager_loads_is_the_agents_state(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    counted = Counted()
    script = turns(call("search", query="kelp"), call("finish_step"), "done", plan=PLAN)
    agent = build(script, manager, tools=[counted.search], planning_enabled=True)
    result = await agent.run("What is kelp?")
    newest = (await manager.list_checkpoints("researcher"))[0]
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(state, AgentState)
    assert (state.agent_id, state.run_id, state.status) == (
        "researcher",
        result.run_id,
        "completed",
    )
    assert state.step_number == 5  # plan, three cycles, finish
    assert state.conversation_history[0] == {"role": "user", "content": "What is kelp?"}
    assert state.conversation_history[-1] == {"role": "assistant", "content": "done"}
    assert state.tool_usage_counts == {"search": 1}
    assert state.tool_results_cache == {"search": "found kelp"}
    assert [item["task"] for item in state.completed_actions] == ["look", "write"]
    assert [(item["task"], item["status"]) for item in state.pending_actions] == [
        ("check", "pending")
    ]
    assert state.budget_spent_usd == result.budget.spent_usd > 0
    assert state.model == "scripted"


async def test_the_model_is_told_of_the_plan(tmp_path: Path) -> None:
    seen: list[str] = []

    def script(messages: Any) -> Any:
        seen.append(messages[0]["content"])
        return turns(call("finish_step"), "done", plan=PLAN)(messages)

    await build(script, planning_enabled=True).run("go")
    assert "[>] look\n[ ] write\n[ ] check" in seen[1]
    assert "[x] look\n[>] write\n[ ] check" in seen[2]


async def test_a_plan_that_the_model_cannot_make_is_the_task_itself() -> None:
    result = await build(turns("done", plan="no idea"), planning_enabled=True).run("go")
    assert [item["task"] for item in result.plan] == ["go"]


class Report(Signature):
    """Write a report."""

    topic: str = InputField("what it is about")
    text: str = OutputField("the report")
    confidence: float = OutputField("from 0 to 1")


class Pydantic(BaseModel):
    text: str
    confidence: float


@dataclasses.dataclass
class Plain:
    text: str
    confidence: float


@pytest.mark.parametrize(
    ("signature", "answer"),
    [
        (Report(), {"text": "kelp", "confidence": 0.5}),
        (Report, {"text": "kelp", "confidence": 0.5}),
        (Pydantic, Pydantic(text="kelp", confidence=0.5)),
        (Plain, Plain("kelp", 0.5)),
    ],
)
async def test_a_signature_gives_the_structured_answer(signature: object, answer: Any) -> None:
    script = turns('{"text": "kelp", "confidence": 0.5}')
    result = await build(script, more={"signature": signature}).run("go")
    assert result.answer == answer


async def test_an_answer_that_does_not_fit_is_given_back_to_the_model() -> None:
    script = turns('{"text": 7}', "no JSON", '{"text": "kelp", "confidence": 1}')
    agent = build(script, more={"signature": Report})
    result = await agent.run("go")
    assert (result.answer, result.cycles_used) == ({"text": "kelp", "confidence": 1.0}, 3)
    told = [m["content"] for m in agent.state.conversation_history if m["role"] == "user"]
    assert "does not fit" in told[1] and "does not fit" in told[2]


def test_what_is_no_signature_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a signature"):
        BaseAutonomousAgent(signature="report")


async def test_a_wrong_call_is_told_to_the_model_and_is_no_failure() -> None:
    counted = Counted()
    script = turns(call("nothing"), call("search", words="kelp"), call("search", query=3), "done")
    agent = build(script, tools=[counted.search])
    assert (await agent.run("go")).status == "completed"
    told = [m["content"] for m in agent.state.conversation_history if m["role"] == "tool"]
    assert "there is no tool 'nothing'" in told[0]
    assert "unknown: words" in told[1]
    assert "Expected `str`" in told[2]
    assert counted.calls == []


async def test_a_tool_that_fails_is_told_to_the_model(tmp_path: Path) -> None:
    def broken(query: str) -> str:
        raise ConnectionError("no network")

    agent = build(turns(call("broken", query="x"), "done"), manager_in(tmp_path), tools=[broken])
    assert (await agent.run("go")).status == "completed"
    assert agent.state.conversation_history[2]["content"] == "error: ConnectionError: no network"


async def test_it_stops_after_max_cycles_and_says_so(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    counted = Counted()
    script = turns(*[call("search", query=str(n)) for n in range(4)], "done")
    result = await build(script, manager, tools=[counted.search], max_cycles=3).run("go")
    assert (result.status, result.cycles_used, result.answer) == ("max_cycles_reached", 3, None)
    assert (await manager.list_checkpoints("researcher"))[0].status == "max_cycles_reached"
    again = await build(script, manager, tools=[counted.search], max_cycles=3).run("go")
    assert (again.status, again.run_id) == ("max_cycles_reached", result.run_id)
    done = await build(script, manager, tools=[counted.search], max_cycles=5).run("go")
    assert (done.status, done.cycles_used, done.run_id) == ("completed", 5, result.run_id)
    assert counted.calls == ["0", "1", "2", "3"]


async def test_it_stops_before_a_cycle_that_would_exceed_the_budget(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    counted = Counted()
    script = turns(*[call("search", query=str(n)) for n in range(9)], "done")
    first = await build(script, manager, tools=[counted.search], budget_usd=0.008).run("go")
    assert first.status == "budget_exhausted"
    assert 0.004 < first.budget.spent_usd <= 0.008
    newest = (await manager.list_checkpoints("researcher"))[0]
    assert newest.status == "budget_exhausted"
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(state, AgentState)
    assert state.metadata["interrupt"]["source"] == "budget"
    again = await build(script, manager, tools=[counted.search], budget_usd=0.008).run()
    assert (again.status, again.cycles_used) == ("budget_exhausted", first.cycles_used)
    done = await build(script, manager, tools=[counted.search], budget_usd=9.0).run()
    assert (done.status, done.run_id) == ("completed", first.run_id)
    assert done.budget.spent_usd > first.budget.spent_usd
    assert counted.calls == [str(n) for n in range(9)]


async def test_an_unknown_price_is_said_to_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "surehold.agent"):
        agent = BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, budget_usd=1.0),
            model=ScriptedModel(["done"], name="model without a price"),
        )
        result = await agent.run("go")
    assert result.budget.unpriced_calls == 1
    assert str(result.budget).startswith("price unknown of $1.00")
    assert "budget_usd does not count its calls" in caplog.text


async def test_a_failure_is_in_the_state_and_a_resume_tries_again(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    counted, trouble = Counted(), True

    def script(messages: Any) -> Any:
        if trouble and len(messages) > 3:
            raise ConnectionError("the model is away")
        return turns(call("search", query="kelp"), "done")(messages)

    result = await build(script, manager, tools=[counted.search]).run("go")
    assert (result.status, result.error) == ("failed", "ConnectionError: the model is away")
    newest = (await manager.list_checkpoints("researcher"))[0]
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(state, AgentState)
    assert (state.status, state.metadata["error"]) == ("failed", result.error)
    with pytest.raises(StepError, match="the model is away"):
        await build(script, manager, tools=[counted.search], error_handling_enabled=False).run()
    trouble = False
    done = await build(script, manager, tools=[counted.search]).run()
    assert (done.status, done.error, done.run_id) == ("completed", None, result.run_id)
    assert counted.calls == ["kelp"]


async def test_without_any_model_it_fails_at_run_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SUREHOLD_MODEL", raising=False)
    agent = BaseAutonomousAgent(AutonomousConfig(max_cycles=3))
    with pytest.raises(UsageError, match="no model is set"):
        await agent.run("go")
    with pytest.raises(UsageError, match="no task"):
        await agent.run()


async def test_the_words_of_the_model_are_shown_as_they_come() -> None:
    heard: list[str] = []
    await build(turns("a few words"), more={"on_text": heard.append}).run("go")
    assert "".join(heard) == "a few words"


# Configuration


def test_the_configuration_has_the_defaults_that_people_know() -> None:
    config = AutonomousConfig()
    assert (config.max_cycles, config.planning_enabled) == (20, True)
    assert not AgentConfig().planning_enabled
    due = config.triggers(Triggers())
    assert (due.frequency, due.interval) == (5, 60.0)
    assert (config.resume_from_checkpoint, config.enable_interrupts) == (False, True)
    assert (config.graceful_shutdown_timeout, config.checkpoint_on_interrupt) == (5.0, True)
    for wrong in ({"max_cycles": 0}, {"checkpoint_frequency": 0}, {"budget_usd": -1}):
        with pytest.raises(UsageError):
            AutonomousConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "manager", "expected"),
    [
        ({}, {}, (5, 60.0)),
        ({}, {"checkpoint_frequency": 10}, (10, 60.0)),
        ({"checkpoint_frequency": 2}, {"checkpoint_frequency": 10}, (2, 60.0)),
        ({"checkpoint_frequency": 20}, {"checkpoint_frequency": 10}, (10, 60.0)),
        ({"checkpoint_frequency": 5}, {"checkpoint_frequency": 10}, (5, 60.0)),
        ({"checkpoint_frequency": 5}, {"checkpoint_interval": 30.0}, (5, 30.0)),
        ({"checkpoint_interval_seconds": 300.0}, {"checkpoint_interval": 600.0}, (5, 300.0)),
        ({"checkpoint_interval_seconds": 90.0}, {}, (5, 90.0)),
    ],
)
def test_triggers_are_ored_and_defaults_apply_only_where_none_is_set(
    config: dict[str, Any], manager: dict[str, Any], expected: tuple[int, float]
) -> None:
    others = StateManager("memory://", **manager).triggers
    made = dataclasses.replace(AutonomousConfig(**config), max_cycles=3).triggers(others)
    assert (made.frequency, made.interval) == expected


async def test_it_is_saved_at_the_frequency_that_is_set(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    counted = Counted()
    script = turns(*[call("search", query=str(n)) for n in range(8)], "done")
    await build(script, manager, tools=[counted.search], checkpoint_frequency=3).run("go")
    steps = [one.step_number for one in await manager.list_checkpoints("researcher")]
    assert steps == [10, 9, 6, 3, 0]


# Hooks


async def test_hooks_are_told_and_their_history_is_kept(tmp_path: Path) -> None:
    hooks, heard = HookManager(), []

    async def note(context: Any) -> HookResult:
        heard.append((context.event_type.value, context.data.get("tool")))
        return HookResult(success=True)

    for event in (
        HookEvent.PRE_AGENT_LOOP,
        HookEvent.POST_AGENT_LOOP,
        HookEvent.PRE_TOOL_USE,
        HookEvent.POST_TOOL_USE,
        HookEvent.POST_CHECKPOINT_SAVE,
    ):
        hooks.register(event, note)
    manager = manager_in(tmp_path, hook_manager=hooks)
    agent = build(turns(call("search", query="x"), "done"), manager, tools=[Counted().search])
    await agent.run("go")
    names = [name for name, _ in heard]
    assert names[0] == "pre_agent_loop" and names[-1] == "post_agent_loop"
    assert names.count("post_checkpoint_save") == 2
    assert ("pre_tool_use", "search") in heard and ("post_tool_use", "search") in heard
    saved = (await manager.list_checkpoints("researcher"))[0]
    state = await manager.load_checkpoint(saved.checkpoint_id)
    assert isinstance(state, AgentState)
    assert [entry["event"] for entry in state.hook_event_history] == ["post_tool_use"]
    assert state.registered_hooks


async def test_a_hook_can_do_without_a_plan() -> None:
    hooks, heard = HookManager(), []
    hooks.register(
        HookEvent.POST_PLAN_GENERATION, lambda context: heard.append(context.data["plan"])
    )
    more = {"hook_manager": hooks}
    first = await build(turns("done", plan=PLAN), planning_enabled=True, more=more).run("go")
    assert len(first.plan) == len(heard[0]) == 3
    hooks.register(
        HookEvent.PRE_PLAN_GENERATION, lambda context: HookResult(False, error="no", veto=True)
    )
    second = await build(turns("done", plan=PLAN), planning_enabled=True, more=more).run("go")
    assert (second.plan, second.status) == ([], "completed")


async def test_a_hook_can_forbid_a_tool(tmp_path: Path) -> None:
    hooks, counted = HookManager(), Counted()
    hooks.register(
        HookEvent.PRE_TOOL_USE, lambda context: HookResult(False, error="not now", veto=True)
    )
    agent = build(
        turns(call("search", query="x"), "done"),
        manager_in(tmp_path),
        tools=[counted.search],
        more={"hook_manager": hooks},
    )
    assert (await agent.run("go")).status == "completed"
    assert counted.calls == []
    assert agent.state.conversation_history[2]["content"] == "error: refused by a hook: not now"


async def test_a_hook_sees_the_agents_state_before_it_is_saved(tmp_path: Path) -> None:
    hooks = HookManager()

    def stamp(context: Any) -> HookResult:
        state = context.data["state"]
        stamped = {**state.metadata, "stamped": context.data["step_number"]}
        new = dataclasses.replace(state, metadata=stamped)
        return HookResult(success=True, data={"state": new})

    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, stamp)
    manager = manager_in(tmp_path, hook_manager=hooks)
    await build(turns("done"), manager).run("go")
    saved = (await manager.list_checkpoints("researcher"))[0]
    state = await manager.load_checkpoint(saved.checkpoint_id)
    assert isinstance(state, AgentState)
    assert state.metadata["stamped"] == state.step_number == 2
    assert state.extra["answer"] == "done"


# Recorders


async def test_what_a_tool_does_to_the_agents_own_state_comes_back(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)

    class Remembering(BaseAutonomousAgent):
        pass

    agents: list[BaseAutonomousAgent] = []
    done: list[str] = []

    @tool(idempotent=True)
    def remember(fact: str) -> str:
        done.append(fact)
        agents[-1].memory["fact"] = fact
        agents[-1].update_workflow_state(run_id="flow-1", status="running", current_node="a", n=1)
        return "noted"

    def script(messages: Any) -> Any:
        if len(messages) > 3 and len(agents) == 1:
            raise ConnectionError("gone")
        return turns(call("remember", fact="kelp"), "done")(messages)

    for expected in ("failed", "completed"):
        agent = build(script, manager, tools=[remember], agent=Remembering, checkpoint_frequency=9)
        agents.append(agent)
        assert (await agent.run("go")).status == expected
        assert agent.memory == {"fact": "kelp"}
        assert agent.state.workflow_run_id == "flow-1"
        assert agent.state.workflow_state["current_node"] == "a"
        assert agent.state.workflow_state["n"] == 1
    assert done == ["kelp"]


def test_two_tools_of_one_name_are_refused() -> None:
    counted = Counted()
    with pytest.raises(UsageError, match="there is a tool 'search' already"):
        BaseAutonomousAgent(tools=[counted.search, counted.search])


async def test_several_calls_in_one_reply_are_made_in_order(tmp_path: Path) -> None:
    counted = Counted()
    wanted = tuple(ToolCall(f"c{n}", "search", {"query": str(n)}) for n in range(3))
    agent = build(
        turns(Reply(tool_calls=wanted), "done"), manager_in(tmp_path), tools=[counted.search]
    )
    await agent.run("go")
    assert counted.calls == ["0", "1", "2"]
    ids = [m.get("tool_call_id") for m in agent.state.conversation_history if m["role"] == "tool"]
    assert ids == ["c0", "c1", "c2"]
