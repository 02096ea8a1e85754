"""What a fleet says of a run is so: usage, reasons, rounds, forks, approvals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fleets import ledger, manager, team
from tests.builders.graphs import Heard

from surehold import Fleet
from surehold.agents.fleet.execution import Backoff
from surehold.agents.fleet.participants import ModelParticipant
from surehold.agents.fleet.settings import ApprovalSettings, Limits, PlanReview
from surehold.agents.models import Reply, ToolCall
from surehold.agents.tools import Approval, tool
from surehold.errors import LeaseHeldError, StepError, UsageError
from surehold.testing.scripted import ScriptedModel


class Counting:
    """A model that counts how often it was asked."""

    name = "counting"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.asked = 0

    async def respond(self, messages: Any, **how: Any) -> Reply:
        self.asked += 1
        return await self.model.respond(messages, **how)  # type: ignore[no-any-return]


async def slow(instruction: str) -> str:
    await asyncio.sleep(0.02)
    return "done"


@pytest.mark.parametrize(
    ("judge", "limits", "status"),
    [
        (lambda done, said: ledger("a"), Limits(rounds=2), "max_rounds_reached"),
        (lambda done, said: ledger("a", progressing=False), Limits(stalls=1, resets=0), "stalled"),
        (lambda done, said: "no JSON", Limits(stalls=0, resets=0), "stalled"),
    ],
)
async def test_usage_counts_every_call_when_a_limit_ends_the_run(
    judge: Any, limits: Limits, status: str
) -> None:
    model = Counting(manager(9, judge=judge))
    async with Fleet(model, {"a": slow}, "memory://", limits=limits) as fleet:
        result = await fleet.run("Go")
        assert (result.status, result.usage["calls"]) == (status, model.asked)
        asked = model.asked
        again = await fleet.run(resume_from_checkpoint=result.checkpoint_id)
        assert (again.status, again.usage["calls"], model.asked) == (status, asked, asked)


async def test_a_run_out_of_time_asks_no_model_when_it_is_resumed() -> None:
    model = Counting(manager(99))
    limits = Limits(rounds=99, seconds=0.05)
    async with Fleet(model, dict.fromkeys(team(), slow), "memory://", limits=limits) as fleet:
        result = await fleet.run("Go")
        assert result.status == "budget_exhausted" and "0.05 s" in result.error
        asked = model.asked
        again = await fleet.run(resume_from_checkpoint=result.checkpoint_id)
        assert (again.status, model.asked) == ("budget_exhausted", asked)


async def test_a_waiting_run_shows_what_it_has_used() -> None:
    review = PlanReview(require_human_approval=True)
    async with Fleet(manager(1), team(), "memory://", plan_review=review) as fleet:
        assert (await fleet.run("Go")).status == "waiting"
        assert fleet.state is not None and fleet.state["usage"]["calls"] == 2
        result = await fleet.answer(str(fleet.workflow_id), True)
        assert result.usage["calls"] == 2 + 2 + 1 + 1


async def test_an_unreadable_ledger_says_why() -> None:
    heard = Heard()
    model = manager(1, judge=lambda done, said: "The team is stuck.")
    limits = Limits(stalls=0, resets=0)
    async with Fleet(model, team(), "memory://", observer=heard, limits=limits) as fleet:
        result = await fleet.run("Go")
    assert result.status == "stalled" and "ledger could not be read" in result.error
    [event] = [one for one in heard.events if one.type == "fleet.ledger_unreadable"]
    assert event.data["problem"]


async def test_a_rejected_plan_is_not_a_completed_run() -> None:
    review = PlanReview(require_human_approval=True)
    async with Fleet(manager(1), team(), "memory://", plan_review=review) as fleet:
        assert (await fleet.run("Go")).status == "waiting"
        result = await fleet.answer(str(fleet.workflow_id), False)
    assert (result.status, result.error) == ("failed", "the plan was not approved")
    assert result.answer == "The plan was not approved."


async def test_resuming_a_run_that_is_executed_elsewhere_makes_no_fork(tmp_path: Path) -> None:
    db, working, go = f"sqlite:///{tmp_path / 'runs.db'}", asyncio.Event(), asyncio.Event()

    async def wait(instruction: str) -> str:
        working.set()
        await go.wait()
        return "done"

    first = Fleet(manager(1), {"researcher": wait}, db)
    async with first, Fleet(manager(1), {"researcher": wait}, db) as second:
        await first.set_workflow_id("w")
        running = asyncio.create_task(first.run("Go"))
        await working.wait()
        earlier = (await second.list_checkpoints("w"))[-1]
        with pytest.raises(LeaseHeldError):
            await second.run(resume_from_checkpoint=earlier["checkpoint_id"])
        go.set()
        assert (await running).status == "completed"
        assert {one["workflow_id"] for one in await second.list_checkpoints()} == {"w"}
        forked = await second.run(resume_from_checkpoint=earlier["checkpoint_id"])
        assert forked.forked_from == "w" and forked.run_id != "w"


async def test_a_listing_shows_the_round_of_the_state() -> None:
    async with Fleet(manager(3), team(), "memory://") as fleet:
        await fleet.run("Go")
        marked = await fleet.create_checkpoint({"round": "draft 7", "status": "reviewed"})
        newest = (await fleet.list_checkpoints())[0]
        assert newest["checkpoint_id"] == marked and newest["current_round"] == 3
        assert newest["metadata"] == {"round": "draft 7", "status": "reviewed"}
        two = next(one for one in await fleet.list_checkpoints() if one["current_round"] == 2)
        fork = await fleet.fork_checkpoint(two["checkpoint_id"])
        for one in await fleet.list_checkpoints(fork):
            exported = json.loads(await fleet.export_checkpoint(one["checkpoint_id"]))
            assert one["current_round"] == exported["current_round"] == 2


def shell_participant(called: list[Any], arguments: dict[str, Any]) -> ModelParticipant:
    @tool
    def shell(command: str, seconds: int = 1) -> str:
        "Run a command."
        called.append((command, seconds))
        return "ok"

    replies = [Reply(tool_calls=(ToolCall("1", "shell", arguments),)), "done"]
    script = lambda said: replies[sum(one["role"] == "assistant" for one in said)]  # noqa: E731
    return ModelParticipant(ScriptedModel(script), tools=[shell])


async def test_arguments_that_do_not_fit_are_not_put_up_for_approval() -> None:
    called: list[Any] = []
    approvals = ApprovalSettings(require_approval_for=("shell",))
    crew = {"researcher": shell_participant(called, {"cmd": "ls"})}
    async with Fleet(manager(1), crew, "memory://", approvals=approvals) as fleet:
        assert (await fleet.run("Go")).status == "completed" and called == []


async def test_an_edit_that_does_not_fit_is_refused_and_the_question_stays_open() -> None:
    called: list[Any] = []
    approvals = ApprovalSettings(require_approval_for=("shell",))
    crew = {"researcher": shell_participant(called, {"command": "ls"})}
    async with Fleet(manager(1), crew, "memory://", approvals=approvals) as fleet:
        assert (await fleet.run("Go")).status == "waiting"
        run_id = str(fleet.workflow_id)
        with pytest.raises(UsageError, match="does not fit"):
            await fleet.answer(run_id, Approval(True, {"command": "ls", "seconds": "soon"}))
        result = await fleet.answer(run_id, Approval(True, {"command": "pwd", "seconds": 2}))
    assert result.status == "completed" and called == [("pwd", 2)]


@pytest.mark.parametrize(
    ("error", "attempts"), [(ConnectionError("away"), 3), (KeyError("typo"), 1)]
)
async def test_automatic_resume_does_not_repeat_a_bug(error: Exception, attempts: int) -> None:
    tried: list[str] = []

    async def work(instruction: str) -> str:
        tried.append(instruction)
        raise error

    async def at_once(seconds: float) -> None:
        pass

    backoff = Backoff(resumes=2, sleep=at_once)
    async with Fleet(manager(1), {"researcher": work}, "memory://", auto_resume=backoff) as fleet:
        with pytest.raises(StepError):
            await fleet.run("Go")
    assert len(tried) == attempts


@pytest.mark.parametrize(
    "wrong", [{"rounds": -1}, {"rounds": "x"}, {"seconds": 0}, {"stalls": 1.5}]
)
def test_wrong_limits_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(wrong))} is "):
        Limits(**wrong)


async def test_wrong_arguments_are_refused_by_name() -> None:
    for days in (-5, 0, "5"):
        with pytest.raises(UsageError, match=f"cleanup_after_days is {days!r}"):
            Fleet(manager(1), team(), "memory://", cleanup_after_days=days)  # type: ignore[arg-type]
    async with Fleet(manager(1), team(), "memory://") as fleet:
        with pytest.raises(UsageError, match="the metadata is 'text'"):
            await fleet.create_checkpoint("text")  # type: ignore[arg-type]


async def test_a_failure_names_the_participant_and_the_run() -> None:
    async def fail(instruction: str) -> str:
        raise ConnectionError("no network")

    crew = dict.fromkeys(team(), fail)
    async with Fleet(manager(1), crew, "memory://") as fleet:
        with pytest.raises(
            StepError, match=r"node 'round', participant '\w+', failed in run 'boat'"
        ):
            await fleet.run("Go", run_id="boat")
