"""What must not happen twice, must not be lost and must not be escaped."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import build, call, manager_in, turns

from surehold import (
    AutonomousConfig,
    BaseAutonomousAgent,
    CheckpointConfig,
    DriftWatch,
    GraphConfig,
    HookManager,
    MemoryStorage,
    Message,
    RedactionHook,
    Reply,
    State,
    StateGraph,
    StateManager,
    ToolCall,
    Usage,
)
from surehold.agents.tools.definition import tool
from surehold.engine.runs import view_note
from surehold.errors import DriftError, InDoubtError, StepError, UsageError
from surehold.storage.base import RunQuery
from surehold.testing.scripted import ScriptedModel


@pytest.mark.parametrize("how", ["raises", "leaves what cannot be stored"])
async def test_a_tool_that_failed_is_not_called_again_when_its_cycle_is(how: str) -> None:
    storage = MemoryStorage()
    charged: list[int] = []
    agents: list[BaseAutonomousAgent] = []

    def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        if how == "raises":
            raise TimeoutError("no answer after the card was charged")
        agents[-1].state.memory_contents["connection"] = object()
        return "charged"

    def ship() -> str:
        """Ship the goods."""
        raise InDoubtError("the shop did not say")

    calls = (ToolCall("1", "charge", {"amount": 5}), ToolCall("2", "ship", {}))
    for _ in range(2):
        script = [Reply(tool_calls=calls), Reply("done")]
        agents.append(build(script, StateManager(storage), tools=[charge, ship]))
        with suppress(InDoubtError):
            await agents[-1].run("Sell it")
    assert charged == [5]


async def test_another_text_at_an_earlier_checkpoint_is_heard() -> None:
    storage = MemoryStorage()
    heard: list[list[str]] = []

    def script(messages: Any) -> Reply:
        heard.append([m["content"] for m in messages if m["role"] == "user"])
        return call("look") if sum(m["role"] == "assistant" for m in messages) < 3 else Reply("end")

    def look() -> str:
        """Look around."""
        return "nothing"

    def agent() -> BaseAutonomousAgent:
        return build(script, StateManager(storage), tools=[look], checkpoint_frequency=1)

    first = await agent().run("Find it")
    saved = await StateManager(storage).list_checkpoints(first.run_id)
    early = next(one for one in saved if one.step == 2)
    before = len(heard)
    again = await agent().run("Look elsewhere", checkpoint=early.checkpoint_id)
    assert again.status == "completed"
    assert again.run_id != first.run_id
    assert len(heard) > before
    assert heard[-1][-1] == "Look elsewhere"


async def test_what_a_child_spent_before_it_failed_is_the_parents_cost() -> None:
    spent = Usage(10, 10, 5.0)

    def dear(messages: Any) -> Reply:
        if any(m["role"] == "assistant" for m in messages):
            raise ConnectionError("away")
        return Reply(tool_calls=(ToolCall("1", "look", {}),), usage=spent)

    def look() -> str:
        """Look around."""
        return "nothing"

    child = BaseAutonomousAgent(
        AutonomousConfig(planning_enabled=False),
        agent_id="child",
        tools=[look],
        model=ScriptedModel(dear),
    )
    script = [call("child", task="q"), call("child", task="again"), Reply("end")]
    agent = build(script, StateManager(MemoryStorage()), tools=[child.as_tool()], budget_usd=1.0)
    result = await agent.run("Ask it")
    assert result.status == "budget_exhausted"
    assert result.budget.spent_usd >= 5.0


async def test_a_graceful_interrupt_reaches_the_agents_inside_agents() -> None:
    cycles: list[int] = []
    top: list[BaseAutonomousAgent] = []

    async def act() -> str:
        """Do something."""
        cycles.append(1)
        if len(cycles) == 1:
            top[0].interrupt("stop")
        return "done"

    def busy(messages: list[Message]) -> Reply:
        return call("act") if len(messages) < 20 else Reply("end")

    def nested(agent_id: str, script: Any, tool: Any) -> BaseAutonomousAgent:
        config = AutonomousConfig(planning_enabled=False)
        model = ScriptedModel(script)
        return BaseAutonomousAgent(config, agent_id=agent_id, tools=[tool], model=model)

    inner = nested("inner", busy, act)
    outer = nested("outer", [call("inner", task="q"), Reply("end")], inner.as_tool())
    script = [call("outer", task="q"), Reply("end")]
    top.append(build(script, StateManager(MemoryStorage()), tools=[outer.as_tool()]))
    result = await top[0].run("Go")
    assert (result.status, len(cycles)) == ("interrupted", 1)


async def test_steps_that_keep_failing_are_stopped_by_the_policy() -> None:
    watch = DriftWatch(policy="stop")
    config = GraphConfig(
        name="g", observer=watch, checkpoint=CheckpointConfig(interval=1, preserve=True)
    )
    tries: list[int] = []

    def work(state: State) -> dict[str, int]:
        tries.append(1)
        if len(tries) % 3:
            raise RuntimeError(f"no {len(tries)}")
        return {"n": len(tries)}

    graph = StateGraph(config, manager=StateManager(MemoryStorage()))
    graph.add_node("work", work)
    graph.add_node("end", lambda state: None)
    graph.add_edge("work", "end", lambda state: state["n"] >= 60)
    graph.add_edge("work", "work")
    graph.set_entry_point("work")
    graph.set_exit_point("end")

    async def keep_going() -> None:
        begun = False
        while len(tries) < 60:
            try:
                if begun:
                    await watch.resume(graph, "r")
                else:
                    begun = True
                    await watch.execute(graph, State.new({"n": 0}, run_id="r"))
            except StepError:
                continue

    with pytest.raises(DriftError):
        await keep_going()


def test_what_is_no_manager_is_refused_and_a_models_name_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="state_manager is a str"):
        BaseAutonomousAgent(state_manager="sqlite:///x.db")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nobody"):
        BaseAutonomousAgent(model="nobody:llama")


@pytest.mark.parametrize(
    "wrong", [{"max_cycles": "5"}, {"budget_usd": 0}, {"planning_enabled": "no"}]
)
def test_a_wrong_setting_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))} is "):
        AutonomousConfig(**wrong)


@pytest.mark.parametrize("inside", [False, True])
async def test_hooks_of_an_agent_are_called_by_a_manager_without_hooks(
    tmp_path: Path, inside: bool
) -> None:
    hooks, secret = HookManager(), "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    hooks.register_hook(RedactionHook())
    manager = manager_in(tmp_path)
    told = f"the key is {secret}"
    settings = {"hook_manager": hooks, "model": ScriptedModel([told])}
    plain = AutonomousConfig(planning_enabled=False)
    agent = BaseAutonomousAgent(
        plain, state_manager=None if inside else manager, agent_id="inner", **settings
    )
    if inside:
        outer = build(turns(call("inner", task="tell"), "done"), manager, tools=[agent.as_tool()])
        result = await outer.run("go")
        (invoked,) = outer.state.specialist_invocations
        run_id = invoked["run_id"]
    else:
        result = await agent.run("tell")
        run_id = str(result.run_id)
        assert result.answer == told
    assert result.status == "completed"
    stored = await manager.resume_from_latest(run_id)
    assert "[redacted:" in str(stored) and secret not in str(stored)
    await agent.close()
    assert await manager.list_checkpoints(run_id)  # still open


@pytest.mark.parametrize("replayed", [False, True])
async def test_tools_that_run_in_parallel_keep_what_each_leaves_in_memory(replayed: bool) -> None:
    storage, agents = MemoryStorage(), []

    @tool(read_only=True)
    async def slow() -> str:
        await asyncio.sleep(0.02)
        agents[-1].memory["slow"] = [*agents[-1].memory]
        return "slow"

    @tool(read_only=True)
    def fast() -> str:
        agents[-1].memory["fast"] = 1
        del agents[-1].memory["old"]
        return "fast"

    @tool(read_only=True)
    async def fails() -> str:
        agents[-1].memory["fails"] = 1
        await asyncio.sleep(0.01)
        raise ValueError("no")

    @tool(approval=replayed)
    def after() -> str:
        agents[-1].memory["after"] = [*agents[-1].memory]
        return "after"

    @tool
    def before() -> str:
        agents[-1].memory["old"] = 1
        return "before"

    def script(messages: Any) -> Any:
        if messages[-1]["role"] == "tool":
            return "done"
        names = ("before", "slow", "fast", "fails", "after")
        return Reply(tool_calls=tuple(ToolCall(name, name, {}) for name in names))

    def made() -> BaseAutonomousAgent:
        tools = [before, slow, fast, fails, after]
        agents.append(build(script, StateManager(storage), tools=tools))
        return agents[-1]

    result = await made().run("go")
    if replayed:
        assert result.status == "waiting"
        result = await made().run(answer=True)
    assert result.status == "completed"
    assert agents[-1].memory == {"slow": ["old"], "fast": 1, "after": ["slow", "fast"]}


async def test_a_tool_says_whether_the_record_of_a_call_keeps_its_arguments(tmp_path: Path) -> None:
    """Those of a read-only tool are kept only if it says so, of a secret one never."""

    def same(word: str) -> str:
        """Return a word."""
        return word

    kinds: list[Any] = [
        tool(name="read", read_only=True, record_arguments=True)(same),
        tool(name="secret", record_arguments=False)(lambda word: word),
        tool(name="plain")(lambda word: word),
    ]
    names = ("read", "secret", "plain")
    calls = tuple(ToolCall(name, name, {"word": name}) for name in names)
    manager = manager_in(tmp_path)
    await build([Reply(tool_calls=calls), Reply("done")], manager, tools=kinds).run("go")
    notes = [
        view_note(manager.reader, record)
        for run in manager.storage.runs(RunQuery())
        for record in manager.storage.read(run.run_id)
        if record.header.kind == "effect"
    ]
    kept = {note.name: note.inputs for note in notes if note.state == "done"}
    assert [bool(kept[name]) for name in names] == [True, False, True]
    assert "word: 'read'" in kept["read"]
