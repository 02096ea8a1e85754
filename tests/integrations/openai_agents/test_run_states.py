"""Paused runs: saved, claimed once, continued, completed and expired."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agents
import pytest
from agents import Agent, Runner, RunState, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from surehold.errors import LeaseHeldError, NotFoundError, UsageError
from surehold.integrations.openai_agents import SureholdRunStates

agents.set_tracing_disabled(True)


def make_agent(paid: list[int]) -> Agent[Any]:
    @function_tool(needs_approval=True)
    async def pay(order: int) -> str:
        paid.append(order)
        return f"paid {order}"

    model = ScriptedModel(
        [[function_call("pay", {"order": 7}, call_id="call-1")], [assistant_message("Done.")]]
    )
    return Agent("support", model=model, tools=[pay])


async def test_a_paused_run_is_continued_by_another_process_once(address: str) -> None:
    paid = list[int]()
    agent = make_agent(paid)
    with SureholdRunStates(address) as store:
        state: RunState[Any] = (await Runner.run(agent, "Pay.")).to_state()
        await store.save("case-7", state)
        claim = await store.claim("case-7")
        with pytest.raises(LeaseHeldError, match="is claimed for"):
            await store.claim("case-7")
        loaded = await claim.load(agent)
        for item in loaded.get_interruptions():
            loaded.approve(item)
        result = await Runner.run(agent, loaded)
        assert result.final_output == "Done." and paid == [7]
        await store.complete(claim)
        with pytest.raises(NotFoundError, match="is completed"):
            await store.claim("case-7")
        (listed,) = await store.runs()
        assert listed.completed and listed.run_id == "case-7" and listed.claimed_until is None


async def test_of_many_that_claim_at_once_one_has_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    stores = [SureholdRunStates(address) for _ in range(6)]
    await stores[0].save("r", {"state": 1})
    found = await asyncio.gather(*(one.claim("r") for one in stores), return_exceptions=True)
    assert sum(isinstance(one, LeaseHeldError) for one in found) == 5
    for one in stores:
        one.close()


async def test_a_claim_that_has_ended_can_be_claimed_again_and_its_owner_is_refused() -> None:
    with SureholdRunStates("memory://") as store:
        await store.save("r", {"state": 1})
        late = await store.claim("r", seconds=0.001)
        await asyncio.sleep(0.01)
        claim = await store.claim("r")
        for refused in (store.complete(late), store.release(late), store.save("r", {}, claim=late)):
            with pytest.raises(LeaseHeldError, match="has ended"):
                await refused
        await store.save("r", {"state": 2}, claim=claim)
        again = await store.claim("r")
        assert again.state == {"state": 2}
        await store.release(again)
        assert (await store.claim("r")).state == {"state": 2}


async def test_what_is_not_there_and_wrong_arguments_are_said() -> None:
    with SureholdRunStates("memory://") as store:
        with pytest.raises(NotFoundError, match="no paused run 'r'"):
            await store.claim("r")
        with pytest.raises(UsageError, match="seconds is 0"):
            await store.claim("r", seconds=0)
        with pytest.raises(UsageError, match="is empty"):
            await store.save("", {})


async def test_old_runs_expire_unless_they_are_claimed(address: str) -> None:
    with SureholdRunStates(address) as store:
        for run_id in ("a", "b", "c"):
            await store.save(run_id, {"state": run_id})
        await store.claim("b")
        assert await store.expire(older_than=60) == []
        assert sorted(await store.expire(older_than=0)) == ["a", "c"]
        assert [one.run_id for one in await store.runs()] == ["b"]
