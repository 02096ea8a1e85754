"""Agents as tools of agents: runs of their own, linked, and gone on with in place."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import Counted, call, manager_in, turns

import surehold
from surehold import CheckpointManager, HookEvent, HookManager, StateManager
from surehold.agents.agent import Parent
from surehold.agents.models.model import Reply, ToolCall
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.errors import Interrupted, NotFoundError, UsageError
from surehold.storage.base import RunQuery
from surehold.testing.scripted import ScriptedModel

IMMEDIATE = {"mode": "immediate"}


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


class Purse:
    """A tool that a person is asked about, and what it did."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    @tool(approval=True)
    def pay(self, query: str) -> str:
        """Pay for something."""
        self.paid.append(query)
        return "paid"


class Line:
    """Three agents, each a tool of the one before: the last one uses tools."""

    ids = ("top", "middle", "last")

    def __init__(self, tools: Any, replies: list[Any] | None = None) -> None:
        self.tools = tools
        self.replies = replies or [
            *(call(each.__name__, query=each.__name__) for each in tools),
            "the last one's answer",
        ]
        self.agents: list[Any] = []

    def build(self, manager: StateManager | None, **config: Any) -> Any:
        """The first of them."""
        settings = {"planning_enabled": False, "resume_from_checkpoint": True, **config}
        tools, replies = self.tools, self.replies
        self.agents = []
        for agent_id in reversed(self.ids):
            agent = BaseAutonomousAgent(
                AutonomousConfig(**settings),
                state_manager=manager if agent_id == "top" else None,
                agent_id=agent_id,
                tools=tools,
                model=ScriptedModel(turns(*replies)),
                report=lambda line: None,
            )
            self.agents.insert(0, agent)
            tools, replies = [agent.as_tool()], [call(agent_id, task="do it"), f"{agent_id} did"]
        return self.agents[0]

    def runs(self) -> list[str]:
        return [agent.state.run_id for agent in self.agents]


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


async def test_a_child_that_is_set_up_wrongly_fails_its_parent_which_goes_on_once_it_is_mended(
    manager: StateManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUREHOLD_MODEL", raising=False)
    family = Family(tmp_path, [Counted().search])
    parent, child = family.build(manager)
    child._model = None
    failed = await parent.run("go")
    assert failed.status == "failed" and "no model is set" in failed.error
    parent, _ = family.build(manager)
    again = await parent.run()
    assert (again.status, again.run_id) == ("completed", failed.run_id)


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
    purse = Purse()
    family = Family(tmp_path, [purse.pay])
    parent, child = family.build(manager)
    parked = await parent.run("go")
    assert (parked.status, purse.paid) == ("waiting", [])
    assert parked.waiting[0].run_id == child.state.run_id != parked.run_id
    with CheckpointManager(manager.storage) as outside:
        waiting = parked.waiting[0]
        surehold.answer(waiting.run_id, waiting.id, True, storage=outside)
    parent, _ = family.build(manager)
    assert (await parent.run()).status == "completed"
    assert purse.paid == ["pay"]


async def test_a_question_two_agents_below_is_answered_through_the_first(
    manager: StateManager,
) -> None:
    purse = Purse()
    line = Line([purse.pay])
    parked = await line.build(manager).run("go")
    runs = line.runs()
    (waiting,) = parked.waiting
    assert (parked.status, waiting.run_id) == ("waiting", runs[2])
    assert waiting.question["approve"] == "pay"
    with CheckpointManager(manager.storage) as outside:
        for run_id in runs[:2]:
            assert surehold.pending(run_id, storage=outside) == [waiting]
        (own,) = surehold.pending(runs[2], storage=outside)
        assert surehold.pending(storage=outside) == [own]
    assert (own.run_id, f"{own.run_id}/{own.id}") == (waiting.run_id, waiting.id)
    result = await line.build(manager).run(answer=True)
    assert (result.status, result.run_id, purse.paid) == ("completed", parked.run_id, ["pay"])
    assert line.runs() == runs
    assert line.agents[2].state.approval_history[0]["approved"] is True
    with CheckpointManager(manager.storage) as outside:
        assert surehold.pending(parked.run_id, storage=outside) == []


async def test_an_answer_below_is_given_by_its_id_and_may_be_no(manager: StateManager) -> None:
    purse = Purse()
    line = Line([purse.pay])
    (waiting,) = (await line.build(manager).run("go")).waiting
    with pytest.raises(UsageError, match=r"does not wait for 'other'.*cycle@1\[pay"):
        await line.build(manager).run(answers={"other": True})
    result = await line.build(manager).run(answers={waiting.id: {"approved": False}})
    assert (result.status, purse.paid) == ("completed", [])
    assert line.agents[2].state.conversation_history[2]["content"] == "refused by a person"


class Siblings:
    """A parent that has two children pay in one cycle, who ask with the same id."""

    def __init__(self) -> None:
        self.purse = Purse()

    def child(self, agent_id: str) -> BaseAutonomousAgent:
        def script(messages: Any) -> Any:
            if messages[-1]["role"] == "tool":
                return "done"
            return call("pay", query=messages[-1]["content"])

        return self._agent(agent_id, [self.purse.pay], script)

    def build(self, manager: StateManager) -> BaseAutonomousAgent:
        calls = (ToolCall("1", "a", {"task": "x"}), ToolCall("2", "b", {"task": "y"}))
        tools = [self.child("a").as_tool(), self.child("b").as_tool()]
        return self._agent("top", tools, turns(Reply(tool_calls=calls), "end"), manager)

    def _agent(
        self, agent_id: str, tools: Any, script: Any, manager: StateManager | None = None
    ) -> BaseAutonomousAgent:
        return BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
            state_manager=manager,
            agent_id=agent_id,
            tools=tools,
            model=ScriptedModel(script),
            report=lambda line: None,
        )


async def test_an_answer_by_id_that_comes_twice_answers_no_other_agents_question(
    manager: StateManager,
) -> None:
    family = Siblings()
    (first,) = (await family.build(manager).run("go")).waiting
    said = {first.id: True}
    (second,) = (await family.build(manager).run(answers=said)).waiting
    assert family.purse.paid == ["x"]
    with pytest.raises(UsageError, match="does not wait for"):
        await family.build(manager).run(answers=said)
    assert family.purse.paid == ["x"]
    assert (await family.build(manager).run(answers={second.id: True})).status == "completed"
    assert family.purse.paid == ["x", "y"]


async def test_the_id_that_a_question_has_in_its_own_run_is_refused_by_the_runs_around_it(
    manager: StateManager,
) -> None:
    family = Siblings()
    parked = await family.build(manager).run("go")
    (waiting,) = parked.waiting
    own = waiting.id.removeprefix(f"{waiting.run_id}/")
    with pytest.raises(UsageError, match="does not wait for"):
        await family.build(manager).run(answers={own: True})
    with (
        CheckpointManager(manager.storage) as outside,
        pytest.raises(NotFoundError, match="nothing named"),
    ):
        await asyncio.to_thread(surehold.answer, parked.run_id, own, True, storage=outside)
    assert family.purse.paid == []


@pytest.mark.parametrize("by", ["parent", "child", "child, by its own id"])
async def test_a_question_below_is_resolved_by_its_run_or_one_around_it(
    manager: StateManager, by: str
) -> None:
    family = Siblings()
    parked = await family.build(manager).run("go")
    (waiting,) = parked.waiting
    run_id = parked.run_id if by == "parent" else waiting.run_id
    id = waiting.id.removeprefix(f"{run_id}/") if "own" in by else waiting.id
    with CheckpointManager(manager.storage) as outside:
        await asyncio.to_thread(surehold.answer, run_id, id, True, storage=outside)
    (second,) = (await family.build(manager).run()).waiting
    assert (second.question["arguments"], family.purse.paid) == ({"query": "y"}, ["x"])


async def test_an_answer_without_an_id_is_refused_where_several_questions_wait_below(
    manager: StateManager,
) -> None:
    family = Siblings()
    parked = await family.build(manager).run("go")
    (waiting,) = parked.waiting
    top, other = family.build(manager), family.child("b")
    top.state.run_id, other.state_manager = parked.run_id, manager
    with pytest.raises(Interrupted):  # left behind, as by a call that is not made again
        parent = Parent(top.agent_id, parked.run_id, top.forwarded, top.interrupts)
        await other.run_within(parent, "z", f"{parked.run_id}.other")
    with pytest.raises(UsageError, match="waits for 2"):
        await family.build(manager).run(answer=True)
    assert family.purse.paid == []
    await family.build(manager).run(answers={waiting.id: True})
    assert family.purse.paid == ["x"]


async def test_an_answer_below_that_does_not_fit_is_refused_and_the_question_stays(
    manager: StateManager,
) -> None:
    purse = Purse()
    line = Line([purse.pay])
    (waiting,) = (await line.build(manager).run("go")).waiting
    with pytest.raises(UsageError, match="does not fit"):
        await line.build(manager).run(answer="perhaps")
    again = await line.build(manager).run()
    assert (again.status, again.waiting[0].id, purse.paid) == ("waiting", waiting.id, [])
    outside = CheckpointManager(manager.storage)
    with pytest.raises(UsageError, match='"perhaps" is not true, false, or '):
        await asyncio.to_thread(
            surehold.answer, waiting.run_id, waiting.id, "perhaps", storage=outside
        )
    assert (await line.build(manager).run(answer=True)).status == "completed"
    assert purse.paid == ["pay"]


async def test_an_answer_that_no_agent_below_waits_for_is_refused(manager: StateManager) -> None:
    @tool(idempotent=True)
    async def act(query: str) -> str:
        line.agents[0].interrupt("stop", mode="immediate")
        await asyncio.sleep(60)
        return "done"

    line = Line([act])
    assert (await line.build(manager).run("go")).status == "interrupted"
    with pytest.raises(UsageError, match="waits for 0"):
        await line.build(manager).run(answer=True)


async def test_several_questions_below_are_answered_one_after_the_other(
    manager: StateManager,
) -> None:
    purse = Purse()
    two = Reply(tool_calls=tuple(ToolCall(f"c{n}", "pay", {"query": str(n)}) for n in (1, 2)))
    line = Line([purse.pay], [two, call("pay", query="3"), "answered"])
    result = await line.build(manager).run("go")
    asked = []
    while result.waiting:
        asked += [one.question["arguments"]["query"] for one in result.waiting]
        result = await line.build(manager).run(answer=True)
    assert (result.status, asked, purse.paid) == ("completed", ["1", "2", "3"], ["1", "2", "3"])


async def test_a_tool_of_a_child_that_asks_a_person_gets_the_answer_through_the_parent(
    manager: StateManager, tmp_path: Path
) -> None:
    told: list[str] = []

    @tool(read_only=True)
    async def ask_person(query: str) -> str:
        said: str = await surehold.interrupt(f"what about {query}?", schema=str)
        told.append(said)
        return said

    family = Family(tmp_path, [ask_person])
    parked = await family.build(manager)[0].run("go")
    assert parked.waiting[0].question == "what about ask_person?"
    result = await family.build(manager)[0].run(answer="leave it")
    assert (result.status, told) == ("completed", ["leave it"])


async def test_a_child_with_a_storage_of_its_own_is_answered_through_its_parent(
    tmp_path: Path,
) -> None:
    purse = Purse()
    family = Family(tmp_path, [purse.pay])
    mine, other = manager_in(tmp_path / "a"), manager_in(tmp_path / "b")

    def build() -> Any:
        parent, child = family.build(mine)
        child.state_manager = other
        return parent

    assert (await build().run("go")).status == "waiting"
    assert ((await build().run(answer=True)).status, purse.paid) == ("completed", ["pay"])


async def test_a_child_that_is_called_after_its_parent_was_asked_to_stop_does_not_begin(
    manager: StateManager,
) -> None:
    did: list[str] = []

    def act(query: str) -> str:
        did.append(query)
        return "done"

    async def ask_to_stop(query: str) -> str:
        if not did:
            parents[0].interrupt("soon")
        return "asked"

    def build() -> Any:
        child = BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False),
            agent_id="searcher",
            tools=[act],
            model=ScriptedModel(turns(call("act", query="q"), "found")),
        )
        both = Reply(
            tool_calls=(
                ToolCall("a", "ask_to_stop", {"query": "q"}),
                ToolCall("b", "searcher", {"task": "look"}),
            )
        )
        return BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
            state_manager=manager,
            agent_id="boss",
            tools=[ask_to_stop, child.as_tool()],
            model=ScriptedModel(turns(both, "all done")),
            report=lambda line: None,
        )

    parents = [build()]
    stopped = await parents[0].run("go")
    assert (stopped.status, did) == ("interrupted", [])
    again = await build().run()
    assert (again.status, did) == ("completed", ["q"])


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
    with pytest.raises(UsageError, match="is not a name for a tool"):
        agent.as_tool()
    made = agent.as_tool("search", "Searches.")
    assert (made.name, made.description, made.in_doubt) == ("search", "Searches.", "retry")


async def marks(manager: StateManager, runs: list[str]) -> list[tuple[str, Any]]:
    """Status and interrupt of the newest checkpoint of each run."""
    found = []
    for run_id in runs:
        newest = (await manager.list_checkpoints(run_id))[0]
        state = await manager.load_checkpoint(newest.checkpoint_id)
        told = state.metadata.get("interrupt", {})
        found.append((newest.status, (told.get("message"), told.get("mode"))))
    return found


async def test_an_immediate_interrupt_is_saved_and_marked_in_every_agent_inside(
    manager: StateManager,
) -> None:
    done: list[str] = []

    @tool(idempotent=True)
    async def first(query: str) -> str:
        done.append(query)
        return "one"

    @tool(idempotent=True)
    async def second(query: str) -> str:
        done.append(query)
        if done.count(query) == 1:
            line.agents[0].interrupt("stop", mode="immediate")
            await asyncio.sleep(60)
        return "two"

    line = Line([first, second])
    stopped = await line.build(manager).run("go")
    assert stopped.status == "interrupted"
    runs = line.runs()
    assert await marks(manager, runs) == [("interrupted", ("stop", "immediate"))] * 3
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    again = await line.build(manager).run()
    assert (again.status, line.runs()) == ("completed", runs)
    assert done == ["first", "second", "second"]
    assert [agent.state.metadata for agent in line.agents] == [{}] * 3


async def test_an_immediate_interrupt_between_the_nodes_of_a_child_is_marked_in_it_too(
    tmp_path: Path,
) -> None:
    hooks, done = HookManager(), []

    async def saved(context: Any) -> None:
        if done == ["first"]:  # it is the last agent that saves, after its first cycle
            done.append("interrupted")
            line.agents[0].interrupt("stop", mode="immediate")
            await asyncio.sleep(0.01)

    hooks.register(HookEvent.POST_CHECKPOINT_SAVE, saved)
    manager = manager_in(tmp_path, hook_manager=hooks)

    @tool(idempotent=True)
    async def first(query: str) -> str:
        done.append(query)
        return "one"

    @tool(idempotent=True)
    async def second(query: str) -> str:
        done.append(query)
        return "two"

    line = Line([first, second])
    stopped = await line.build(manager, checkpoint_frequency=1).run("go")
    assert (stopped.status, done) == ("interrupted", ["first", "interrupted"])
    assert await marks(manager, line.runs()) == [("interrupted", ("stop", "immediate"))] * 3
    again = await line.build(manager).run()
    assert (again.status, done) == ("completed", ["first", "interrupted", "second"])


async def test_an_immediate_interrupt_by_a_tool_that_waits_for_nothing_is_no_cancellation() -> None:
    @tool(idempotent=True)
    async def stop(query: str) -> str:
        line.agents[0].interrupt("stop", mode="immediate")
        return "asked to"

    line = Line([stop])
    assert (await line.build(None).run("go")).status == "interrupted"
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_child_can_be_stopped_from_another_thread(manager: StateManager) -> None:
    done: list[str] = []

    @tool(idempotent=True)
    async def act(query: str) -> str:
        done.append(query)
        if len(done) == 1:
            middle = line.agents[1]
            thread = threading.Thread(target=middle.interrupt, args=("no",), kwargs=IMMEDIATE)
            thread.start()
            await asyncio.to_thread(thread.join)
            await asyncio.sleep(60)
        return "done"

    line = Line([act])
    stopped = await line.build(manager).run("go")
    assert stopped.status == "interrupted"
    told = await marks(manager, line.runs())
    assert [status for status, _ in told] == ["interrupted"] * 3
    assert [mark for _, mark in told[1:]] == [("no", "immediate")] * 2
    assert (await line.build(manager).run()).status == "completed"
    assert done == ["act", "act"]


@pytest.mark.parametrize("changes", [False, True])
async def test_a_hook_before_saves_leaves_a_child_linked_to_its_parent(
    tmp_path: Path, changes: bool
) -> None:
    def seen(context: Any) -> None:
        if changes:
            context.data["state"].metadata["customer"] = "acme"

    hooks, purse = HookManager(), Purse()
    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, seen)
    manager = manager_in(tmp_path, hook_manager=hooks)
    family = Family(tmp_path, [purse.pay])
    first = await family.build(manager)[0].run("find kelp")
    assert first.status == "waiting"
    (inside,) = await manager.list_checkpoints("boss/searcher", limit=1)
    linked = {"parent_run": first.run_id, "parent_agent": "boss"}
    assert inside.metadata == ({**linked, "customer": "acme"} if changes else linked)
    (asked,) = surehold.pending(first.run_id, storage=manager.storage)
    surehold.answer(first.run_id, asked.id, True, storage=manager.storage)
    assert (await family.build(manager)[0].run()).status == "completed"
    assert purse.paid == ["pay"]


async def test_a_hook_that_changes_nothing_adds_nothing_to_the_state(tmp_path: Path) -> None:
    hooks = HookManager()
    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, lambda context: None)
    stored = []
    for name, given in (("with", hooks), ("without", None)):
        manager = manager_in(tmp_path / name, hook_manager=given)
        await Family(tmp_path, [Counted().search]).build(manager)[0].run("find kelp")
        newest = next(iter(manager.storage.runs(RunQuery(name="boss"))))
        stored.append(manager.reader.load(manager.reader.newest(newest)).texts.keys())
    assert stored[0] == stored[1]


async def test_every_run_of_a_line_of_agents_says_what_it_waits_for(
    manager: StateManager, caplog: pytest.LogCaptureFixture
) -> None:
    """Those whose agent asks no person themselves wait for a run inside them."""
    line = Line([Purse().pay])
    assert (await line.build(manager).run("go")).status == "waiting"
    told = [message.partition(" waits: ")[2] for message in caplog.messages]
    said = sorted(one for one in told if one)
    assert len(said) == 3 and sum(one.startswith("a run inside it (") for one in said) == 2
    assert sum("'approve': 'pay'" in one for one in said) == 1
