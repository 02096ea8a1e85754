"""Agents as tools of agents: runs of their own, linked, and gone on with in place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.agents import Counted, call, manager_in, turns

import holdfast
from holdfast import CheckpointManager, StateManager
from holdfast.errors import UsageError
from holdfast.runtime.agent import BaseAutonomousAgent
from holdfast.runtime.agent_config import AutonomousConfig
from holdfast.runtime.tools import tool
from holdfast.testing.scripted import ScriptedModel


@pytest.fixture
def manager(tmp_path: Path) -> StateManager:
    return manager_in(tmp_path)


class Family:
    """A parent that delegates to a child, which uses a tool."""

    def __init__(self, tmp_path: Path, tools: Any) -> None:
        self.log = tmp_path / "calls"
        self.tools = tools
        self.away = False
        self.child_replies: list[Any] = [
            *(call(each.__name__, query=each.__name__) for each in tools),
            "the child's answer",
        ]

    def _child_script(self, messages: Any) -> Any:
        if self.away and messages[-1]["role"] == "tool":
            raise ConnectionError("away")
        return turns(*self.child_replies)(messages)

    def build(self, manager: StateManager | None, **config: Any) -> tuple[Any, Any]:
        settings = {"planning_enabled": False, "resume_from_checkpoint": True, **config}
        child = BaseAutonomousAgent(
            AutonomousConfig(**settings),
            agent_id="searcher",
            tools=self.tools,
            model=ScriptedModel(self._child_script, log=self.log, price=100.0),
            report=lambda line: None,
        )
        parent = BaseAutonomousAgent(
            AutonomousConfig(**settings),
            state_manager=manager,
            agent_id="boss",
            tools=[child.as_tool(description="Searches.")],
            model=ScriptedModel(
                turns(call("searcher", task="look for kelp"), "all done"),
                log=self.log,
                price=100.0,
            ),
            report=lambda line: None,
        )
        return parent, child


async def test_a_child_has_a_run_of_its_own_that_is_linked_to_its_parents(
    manager: StateManager, tmp_path: Path
) -> None:
    family = Family(tmp_path, [Counted().search])
    parent, child = family.build(manager)
    result = await parent.run("go")
    assert result.status == "completed"
    assert parent.state.conversation_history[2]["content"] == "the child's answer"
    (invoked,) = parent.state.specialist_invocations
    assert (invoked["agent_id"], invoked["run_id"]) == ("searcher", child.state.run_id)
    assert parent.state.active_specialists == ["searcher"]
    (newest, *_) = await manager.list_checkpoints(invoked["run_id"])
    assert newest.status == "completed"
    assert newest.metadata["parent_run"] == result.run_id
    assert invoked["run_id"].startswith(result.run_id)
    assert child.state.extra["task"] == "look for kelp"
    assert result.budget.spent_usd > child.state.budget_spent_usd > 0


async def test_without_a_state_manager_a_child_is_not_saved_either(tmp_path: Path) -> None:
    parent, _ = Family(tmp_path, [Counted().search]).build(None)
    assert (await parent.run("go")).status == "completed"


async def test_a_failed_child_is_told_to_the_parent(manager: StateManager, tmp_path: Path) -> None:
    family = Family(tmp_path, [Counted().search])
    family.away = True
    parent, _ = family.build(manager)
    assert (await parent.run("go")).status == "completed"
    told = parent.state.conversation_history[2]["content"]
    assert told == "error: agent searcher ended with failed: ConnectionError: away"


async def test_resuming_the_parent_resumes_the_child_in_place(
    manager: StateManager, tmp_path: Path
) -> None:
    agents: list[Any] = []
    done: list[str] = []

    @tool(idempotent=True)
    async def first(query: str) -> str:
        done.append(query)
        return "one"

    @tool(idempotent=True)
    async def second(query: str) -> str:
        if len(done) == 1:
            done.append("interrupting")
            agents[0].interrupt("stop", mode="immediate")
            await asyncio.sleep(60)
        done.append(query)
        return "two"

    family = Family(tmp_path, [first, second])
    parent, child = family.build(manager)
    agents += [parent, child]
    stopped = await parent.run("go")
    assert stopped.status == "interrupted"
    child_run = child.state.run_id
    newest = (await manager.list_checkpoints(child_run))[0]
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert (newest.status, state.metadata["interrupt"]["message"]) == ("interrupted", "stop")
    parent, child = family.build(manager)
    result = await parent.run()
    assert (result.status, result.run_id) == ("completed", stopped.run_id)
    assert child.state.run_id == child_run
    assert done == ["first", "interrupting", "second"]
    assert len(family.log.read_text().splitlines()) == 5  # three of the child, two of the parent


async def test_a_graceful_interrupt_stops_a_child_after_its_own_cycle(
    manager: StateManager, tmp_path: Path
) -> None:
    agents: list[Any] = []
    counted: list[str] = []

    def ask_to_stop(query: str) -> str:
        counted.append(query)
        if len(counted) == 1:
            agents[0].interrupt("soon")
        return "ok"

    family = Family(tmp_path, [ask_to_stop])
    family.child_replies.insert(0, call("ask_to_stop", query="again"))
    parent, child = family.build(manager)
    agents.append(parent)
    stopped = await parent.run("go")
    assert (stopped.status, child.state.extra["cycles_used"]) == ("interrupted", 1)
    parent, _ = family.build(manager)
    assert (await parent.run()).status == "completed"
    assert counted == ["again", "ask_to_stop"]


async def test_what_a_child_waits_for_the_parent_waits_for(
    manager: StateManager, tmp_path: Path
) -> None:
    paid: list[str] = []

    @tool(approval=True)
    def pay(query: str) -> str:
        paid.append(query)
        return "paid"

    family = Family(tmp_path, [pay])
    parent, child = family.build(manager)
    parked = await parent.run("go")
    assert (parked.status, paid) == ("interrupted", [])
    assert parked.waiting[0].run_id == child.state.run_id != parked.run_id
    with CheckpointManager(manager.storage) as outside:
        waiting = parked.waiting[0]
        holdfast.resolve(waiting.run_id, waiting.id, True, storage=outside)
    parent, _ = family.build(manager)
    assert (await parent.run()).status == "completed"
    assert paid == ["pay"]


async def test_an_agent_does_not_take_the_run_that_it_has_as_a_child(
    manager: StateManager, tmp_path: Path
) -> None:
    family = Family(tmp_path, [Counted().search])
    family.away = True
    parent, child = family.build(manager)
    await parent.run("go")
    alone = BaseAutonomousAgent(
        child.config,
        state_manager=manager,
        agent_id="searcher",
        model=ScriptedModel(["mine"]),
    )
    assert (await alone.run("another task")).answer == "mine"


async def test_an_agent_runs_one_task_at_a_time(manager: StateManager, tmp_path: Path) -> None:
    refused: list[str] = []
    agents: list[Any] = []

    async def again(query: str) -> str:
        try:
            await agents[0].run("another")
        except UsageError as error:
            refused.append(error.message)
        return "tried"

    family = Family(tmp_path, [again])
    parent, child = family.build(manager)
    agents.append(child)
    assert (await parent.run("go")).status == "completed"
    assert refused == ["agent 'searcher' is running"]


def test_an_agent_whose_id_is_no_tools_name_needs_one() -> None:
    agent = BaseAutonomousAgent(agent_id="the searcher")
    with pytest.raises(UsageError, match="no name for a tool"):
        agent.as_tool()
    made = agent.as_tool("search", "Searches.")
    assert (made.name, made.description, made.in_doubt) == ("search", "Searches.", "retry")
