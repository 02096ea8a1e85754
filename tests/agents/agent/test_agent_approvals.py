"""Tools that a person is asked about, and calls that nobody knows the outcome of."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import build, call, manager_in, turns

import surehold
from surehold import AgentState, CheckpointManager, StateManager
from surehold.agents.tools.definition import tool
from surehold.errors import InDoubtError, UsageError


class Shop:
    def __init__(self) -> None:
        self.charged: list[int] = []

    @tool(approval=True)
    def charge(self, amount: int) -> dict[str, int]:
        """Charge the card."""
        self.charged.append(amount)
        return {"receipt": amount}


@pytest.fixture
def manager(tmp_path: Path) -> StateManager:
    return manager_in(tmp_path)


def agent_of(shop: Shop, manager: StateManager | None) -> Any:
    return build(turns(call("charge", amount=5), "done"), manager, tools=[shop.charge])


async def parked(shop: Shop, manager: StateManager) -> Any:
    result = await agent_of(shop, manager).run("buy it")
    assert (result.status, shop.charged) == ("waiting", [])
    assert result.waiting[0].question["approve"] == "charge"
    assert result.waiting[0].question["arguments"] == {"amount": 5}
    assert (await manager.list_checkpoints("researcher"))[0].status == "waiting"
    return result


@pytest.mark.parametrize(
    ("answer", "charged", "told", "action"),
    [
        (True, [5], '{"receipt":5}', "once"),
        ({"approved": True}, [5], '{"receipt":5}', "once"),
        ({"approved": True, "arguments": {"amount": 3}}, [3], '{"receipt":3}', "edited"),
        (False, [], "refused by a person", "once"),
        ({"approved": False, "reason": "too dear"}, [], "refused: too dear", "once"),
    ],
)
async def test_a_call_is_approved_edited_or_refused_later(
    answer: Any, charged: list[int], told: str, action: str, manager: StateManager
) -> None:
    shop = Shop()
    first = await parked(shop, manager)
    agent = agent_of(shop, manager)
    result = await agent.run("buy it", answer=answer)
    assert (result.status, result.run_id, shop.charged) == ("completed", first.run_id, charged)
    assert agent.state.conversation_history[2]["content"] == told
    (entry,) = agent.state.approval_history
    assert (entry["tool_name"], entry["action"]) == ("charge", action)
    assert entry["approved"] is bool(charged)
    assert entry["tool_input"] == {"amount": 5}


async def test_the_answer_can_be_left_by_a_program_without_the_agent(tmp_path: Path) -> None:
    manager, shop = manager_in(tmp_path), Shop()
    first = await parked(shop, manager)
    with CheckpointManager(manager.storage) as outside:
        (waiting,) = surehold.pending(first.run_id, storage=outside)
        surehold.answer(first.run_id, waiting.id, {"approved": True}, storage=outside)
    result = await agent_of(shop, manager).run()
    assert (result.status, shop.charged) == ("completed", [5])


UNFIT = [
    ("no", '"no" is not true, false, or {approved, arguments, reason}'),
    ({"approved": "yes"}, 'approved is "yes", not true or false'),
    ({"approve": True}, "approve is unknown"),
    ({"approved": True, "arguments": {"price": 3}}, "arguments.price is unknown"),
    ({"approved": True, "arguments": {"amount": "fifty"}}, "arguments.amount is"),
]


@pytest.mark.parametrize(("answer", "problem"), UNFIT)
async def test_an_answer_that_does_not_fit_is_refused_at_once_and_the_question_stays(
    answer: Any, problem: str, manager: StateManager
) -> None:
    shop = Shop()
    first = await parked(shop, manager)
    with CheckpointManager(manager.storage) as outside:
        with pytest.raises(UsageError, match=re.escape(problem)) as refused:
            surehold.answer(first.run_id, first.waiting[0].id, answer, storage=outside)
        assert refused.value.hint == "it expects true, false, or {approved, arguments, reason}"
        assert len(surehold.pending(first.run_id, storage=outside)) == 1
    with pytest.raises(UsageError, match="does not fit"):
        await agent_of(shop, manager).run(answer=answer)
    assert shop.charged == []
    result = await agent_of(shop, manager).run(answer=True)
    assert (result.status, shop.charged) == ("completed", [5])


async def test_operators_are_shown_which_arguments_fit(manager: StateManager) -> None:
    (waiting,) = (await parked(Shop(), manager)).waiting
    choices = waiting.schema["anyOf"]
    assert choices[1]["properties"]["arguments"]["anyOf"][0]["properties"] == {
        "amount": {"type": "integer"}
    }
    assert ">>>" not in str(waiting.schema)


async def test_an_unanswered_question_stays_open(manager: StateManager) -> None:
    shop = Shop()
    first = await parked(shop, manager)
    again = await agent_of(shop, manager).run()
    assert (again.status, again.run_id) == ("waiting", first.run_id)
    assert again.waiting[0].id == first.waiting[0].id
    with pytest.raises(UsageError, match="does not fit"):
        await agent_of(shop, manager).run(answer="perhaps")
    assert shop.charged == []


async def test_an_answer_that_nobody_waits_for_is_refused(manager: StateManager) -> None:
    with pytest.raises(UsageError, match="no run of 'researcher' waits"):
        await agent_of(Shop(), manager).run("buy it", answer=True)
    assert await manager.list_checkpoints("researcher") == []


async def test_approval_needs_something_to_park_the_run_in() -> None:
    with pytest.raises(UsageError, match="needs a storage"):
        await agent_of(Shop(), None).run("buy it")


async def test_a_call_in_doubt_parks_the_run_until_it_is_resolved(manager: StateManager) -> None:
    sent: list[str] = []

    def send(text: str) -> str:
        """Send a letter."""
        sent.append(text)
        raise InDoubtError("the connection broke")

    def agent() -> Any:
        return build(turns(call("send", text="hello"), "done"), manager, tools=[send])

    with pytest.raises(InDoubtError):
        await agent().run("write")
    parked = await agent().run()
    assert (parked.status, parked.waiting[0].kind) == ("waiting", "effect")
    outside = CheckpointManager(manager.storage)
    await asyncio.to_thread(surehold.answer, parked.run_id, "send", "it went out", storage=outside)
    last = agent()
    assert (await last.run()).status == "completed"
    assert last.state.conversation_history[2]["content"] == "it went out"
    assert sent == ["hello"]


async def test_a_checkpoint_is_taken_before_a_tool_that_wants_one(manager: StateManager) -> None:
    kinds: list[list[str]] = []

    @tool(idempotent=True, checkpoint_before=True)
    async def deploy(where: str) -> str:
        kinds.append([one.kind for one in await manager.list_checkpoints("researcher")])
        return "deployed"

    def agent() -> Any:
        script = turns(call("deploy", where="a"), call("deploy", where="b"), "done")
        return build(script, manager, tools=[deploy])

    result = await agent().run("go")
    assert result.status == "completed"
    assert kinds == [["pre_operation", "routine"], ["pre_operation", "pre_operation", "routine"]]
    before = next(
        one for one in await manager.list_checkpoints("researcher") if one.kind == "pre_operation"
    )
    state = await manager.load_checkpoint(before.checkpoint_id)
    assert isinstance(state, AgentState) and state.extra["cycles_used"] == 1
    again = await agent().run(checkpoint=before.checkpoint_id)
    assert (again.status, again.cycles_used, len(kinds)) == ("completed", 3, 3)  # a fork
