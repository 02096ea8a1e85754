"""The fleet: rounds, ledgers, limits, stalls, and who takes part."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fleets import TEAM, calls, ledger, manager, rounds_done, team, worker
from tests.builders.graphs import Heard

from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.participants import ModelParticipant
from surehold.agents.fleet.settings import Callbacks, Limits, PlanReview
from surehold.agents.models.model import Message, Reply
from surehold.core.values import Usage
from surehold.errors import StepError, UsageError
from surehold.testing.scripted import ScriptedModel


async def test_the_participants_take_turns_until_the_manager_is_satisfied(store: str) -> None:
    async with Fleet(manager(4), team(), store) as fleet:
        result = await fleet.run("Analyze sales data")
        assert str(result) == result.answer == "The answer after 4 rounds."
        assert (result.rounds, result.status) == (4, "completed")
        assert result.run_id == fleet.workflow_id
        assert [one["ledger"]["speaker"] for one in fleet.state["rounds"]] == [
            *TEAM,
            "researcher",
        ]
        assert fleet.task == "Analyze sales data"
        assert fleet.context["available_agents"].keys() == set(TEAM)
        assert fleet.context["user_query"] == "Analyze sales data"


async def test_a_round_is_one_step_saved_after_the_work_with_all_histories(store: str) -> None:
    async with Fleet(manager(3), team(), store) as fleet:
        result = await fleet.run("Go")
        history = await fleet.graph.manager.history(result.run_id)
        rounds = [one for one in history if one.state["current_round"] > 0][:3]
        for number, (entry, name) in enumerate(zip(rounds, TEAM, strict=True), start=1):
            state = entry.state
            assert (state["current_round"], state["decision"]) == (number, "round")
            assert state["last_response"] == f"{name} turn 1: do part {number}"
            assert [len(state[f"history:{one}"]) for one in TEAM[:number]] == [2] * number
            assert [len(state[f"history:{one}"]) for one in TEAM[number:]] == [0] * (3 - number)
            assert entry.checkpoint.metadata == {"round": number}


async def test_a_participant_is_told_what_the_others_said_since_its_last_turn(db: str) -> None:
    async with Fleet(manager(5), team(), db) as fleet:
        await fleet.run("Go")
        told = [one["content"] for one in fleet.history_of("researcher") if one["role"] == "user"]
    assert told[0] == "The task: Go\n\ndo part 1"
    assert told[1] == (
        "The task: Go\n\ncoder: coder turn 1: do part 2\n\nanalyst: analyst turn 1: do part 3\n\n"
        "do part 4"
    )


async def test_the_manager_is_shown_all_that_was_said(db: str) -> None:
    seen: list[list[Message]] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        seen.append([*messages])
        return ledger("coder", f"part {done + 1}", satisfied=done == 2)

    async with Fleet(manager(2, judge=judge), team(), db, instructions="Be brief.") as fleet:
        await fleet.run("Go")
    assert "Be brief." in seen[0][0]["content"]
    assert "- coder: writes and explains code" in seen[0][1]["content"]
    assert "The facts." in seen[0][1]["content"] and "The plan." in seen[0][1]["content"]
    assert [one["content"] for one in seen[2][2:-1]] == [
        "To coder: part 1",
        "coder: coder turn 1: part 1",
        "To coder: part 2",
        "coder: coder turn 2: part 2",
    ]


async def test_participants_are_functions_models_or_more(db: str) -> None:
    heard: list[Any] = []

    async def researcher(instruction: str) -> str:
        """Looks things up."""
        heard.append(instruction)
        return "found"

    async def coder(instruction: str, messages: Sequence[Message]) -> Reply:
        heard.append([one["role"] for one in messages])
        return Reply("coded", usage=Usage(10, 5, 0.25))

    analyst = ModelParticipant(worker("analyst"), description="thinks", instructions="Think.")
    crew = {"researcher": researcher, "coder": coder, "analyst": analyst}
    async with Fleet(manager(3, price=None), crew, db) as fleet:
        result = await fleet.run("Go")
        assert fleet.context["available_agents"]["researcher"] == "Looks things up."
        assert fleet.context["available_agents"]["analyst"] == "thinks"
        assert fleet.history_of("coder")[-1] == {"role": "assistant", "content": "coded"}
    assert heard == ["do part 1", ["user"]]
    assert result.usage["cost_usd"] == pytest.approx(0.25, rel=0.01)
    assert result.usage["unpriced"] == result.usage["calls"] - 2


async def test_usage_is_the_sum_over_all_calls(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(3, log=log), team(log), db) as fleet:
        result = await fleet.run("Go")
    # facts, plan; a ledger and a turn for each round; the last ledger; the answer
    assert result.usage["calls"] == calls(log) == 2 + 2 * 3 + 1 + 1
    assert result.usage["input_tokens"] > 0 and result.usage["cost_usd"] > 0


async def test_the_default_crew_is_researcher_coder_and_analyst(db: str) -> None:
    async with Fleet(manager(1), None, db) as fleet:
        assert fleet.participants == TEAM


async def test_rounds_are_limited_and_the_last_response_is_the_partial_result(db: str) -> None:
    async with Fleet(manager(9), team(), db, limits=Limits(rounds=2)) as fleet:
        result = await fleet.run("Go")
        assert (result.status, result.rounds) == ("max_rounds_reached", 2)
        assert result.answer == "coder turn 1: do part 2"
        assert (await fleet.list_checkpoints(limit=1))[0]["status"] == "max_rounds_reached"


async def test_a_task_done_in_the_last_round_that_is_allowed_is_completed(db: str) -> None:
    async with Fleet(manager(2), team(), db, limits=Limits(rounds=2)) as fleet:
        assert (await fleet.run("Go")).status == "completed"


async def test_with_more_rounds_a_limited_run_goes_on_without_asking_again(
    db: str, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(3, log=log), team(log), db, limits=Limits(rounds=2)) as fleet:
        limited = await fleet.run("Go")
        before = calls(log)
        again = await fleet.run(resume_from_checkpoint=limited.checkpoint_id)
        assert (again.status, calls(log)) == ("max_rounds_reached", before)
    async with Fleet(manager(3, log=log), team(log), db) as fleet:
        final = await fleet.run(resume_from_checkpoint=again.checkpoint_id)
    assert (final.status, final.rounds, final.run_id) == ("completed", 3, limited.run_id)
    assert calls(log) == final.usage["calls"] == 2 + 2 * 3 + 1 + 1


def stuck(until_reset: int) -> Any:
    """A judge who sees no progress before that many plans were made anew."""

    def judge(done: int, messages: Sequence[Message]) -> str:
        resets = messages[1]["content"].count("anew")
        if resets < until_reset:
            return ledger("coder", "try", progressing=False, looping=done > 0)
        return ledger("coder", "try", satisfied=done > 0)

    return judge


def replanner(until_reset: int, log: Path | None = None) -> ScriptedModel:
    judge = stuck(until_reset)

    def script(messages: Sequence[Message]) -> str:
        text = messages[-1]["content"]
        if "Judge" in text:
            return str(judge(rounds_done(messages), messages))
        if "The team is stuck" in text:
            return text.partition("Facts so far:\n")[2] + " anew"
        return "plain"

    return ScriptedModel(script, name="manager", log=log)


async def test_too_many_stalls_reset_the_histories_and_plan_anew(db: str) -> None:
    async with Fleet(replanner(1), team(), db, limits=Limits(stalls=2)) as fleet:
        result = await fleet.run("Go")
        # rounds 1 and 2 are stalls that are still borne; the third stall leads to the new plan
        assert (result.status, result.rounds, fleet.reset_count) == ("completed", 3, 1)
        assert fleet.stall_count == 0
        assert len(fleet.history_of("coder")) == 2
        assert fleet.state["facts"] == "plain anew"
        nodes = [one.node for one in await fleet.graph.manager.list_checkpoints(result.run_id)]
        assert [*reversed(nodes)][1:] == [
            *("plan", "round", "round", "round", "replan", "round", "round", "answer")
        ]


async def test_a_fleet_that_stays_stuck_ends_as_stalled(db: str) -> None:
    limits = Limits(stalls=1, resets=1)
    async with Fleet(replanner(9), team(), db, limits=limits) as fleet:
        result = await fleet.run("Go")
        assert (result.status, fleet.reset_count) == ("stalled", 1)
        assert result.rounds == 2


async def test_a_text_sets_a_stalled_run_going_again(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        helped = any("Look in the attic" in one["content"] for one in messages)
        return ledger("coder", "try", satisfied=helped and done > 1, progressing=helped)

    limits = Limits(stalls=1, resets=0)
    async with Fleet(manager(0, judge=judge), team(), db, limits=limits) as fleet:
        stalled = await fleet.run("Find it")
        assert stalled.status == "stalled"
        again = await fleet.run(resume_from_checkpoint=stalled.checkpoint_id)
        assert again.status == "stalled"
        final = await fleet.run("Look in the attic", stalled.checkpoint_id)
        assert (final.status, final.run_id) == ("completed", stalled.run_id)
        assert fleet.task == "Find it"
        assert {"speaker": "user", "content": "Look in the attic"} in fleet.state["history"]


async def test_progress_makes_up_for_a_stall(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        return ledger("coder", "try", satisfied=done == 6, progressing=done % 2 == 0)

    async with Fleet(manager(0, judge=judge), team(), db, limits=Limits(stalls=1)) as fleet:
        result = await fleet.run("Go")
        assert (result.status, fleet.reset_count) == ("completed", 0)


async def test_a_ledger_that_cannot_be_read_is_asked_for_again(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        problems = [one for one in messages if "could not be read" in one["content"]]
        if not problems:
            return "no JSON at all"
        if len(problems) == 1:
            return ledger("nobody", "go")
        assert "the team is researcher, coder, analyst" in problems[1]["content"]
        return ledger("coder", "go", satisfied=done == 1)

    async with Fleet(manager(0, judge=judge), team(), db) as fleet:
        assert (await fleet.run("Go")).rounds == 1


async def test_ledgers_that_can_never_be_read_end_as_stalled(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    model = manager(0, judge=lambda done, messages: "nonsense", log=log)
    async with Fleet(model, team(), db, limits=Limits(resets=1)) as fleet:
        assert (await fleet.run("Go")).status == "stalled"
    assert calls(log) == 2 * (2 + 3)


async def test_a_run_has_so_many_seconds(db: str) -> None:
    async def slow(instruction: str) -> str:
        await asyncio.sleep(60)
        return "never"

    limits = Limits(seconds=0.3)
    async with Fleet(manager(3), {**team(), "coder": slow}, db, limits=limits) as fleet:
        result = await fleet.run("Go")
        assert (result.status, result.rounds) == ("budget_exhausted", 1)
        assert result.answer == "researcher turn 1: do part 1"
    async with Fleet(manager(3), team(), db) as fleet:
        final = await fleet.run(resume_from_checkpoint=result.checkpoint_id)
        assert (final.status, final.rounds) == ("completed", 3)


async def test_a_timeout_of_the_participants_own_is_a_failure(db: str) -> None:
    async def researcher(instruction: str) -> str:
        raise TimeoutError("the server is slow")

    crew = {**team(), "researcher": researcher}
    async with Fleet(manager(3), crew, db, limits=Limits(seconds=60)) as fleet:
        with pytest.raises(StepError, match="the server is slow"):
            await fleet.run("Go")


async def test_those_who_watch_are_told_of_plans_rounds_text_and_the_answer(db: str) -> None:
    heard = Heard()
    async with Fleet(manager(2), team(), db, observer=heard) as fleet:
        await fleet.run("Go")
    assert heard.of("fleet.plan")[0]["plan"] == "The plan."
    assert [one["round"] for one in heard.of("fleet.round")] == [1, 2]
    assert heard.of("fleet.round")[0]["usage"]["calls"] == 2
    assert heard.of("fleet.turn")[1]["instruction"] == "do part 2"
    assert heard.of("fleet.ledger")[0]["ledger"]["speaker"] == "researcher"
    assert {one["speaker"] for one in heard.of("model.text")} == {"manager", "researcher", "coder"}
    assert heard.of("fleet.answer")[0]["text"] == "The answer after 2 rounds."


async def test_what_is_told_can_be_turned_off(db: str, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    quiet = Callbacks(streaming_enabled=False, log_progress_ledger=False, log_tool_calls=False)
    review = PlanReview(enabled=False)
    with caplog.at_level("INFO", "surehold.fleet"):
        async with Fleet(
            manager(1), team(), db, callbacks=quiet, plan_review=review, observer=heard
        ) as fleet:
            await fleet.run("Go")
    told = set(heard.types())
    assert not told & {"model.text", "fleet.ledger", "fleet.tool", "fleet.plan"}
    assert "fleet.round" in told and not caplog.records


async def test_ledgers_are_logged(db: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "surehold.fleet"):
        async with Fleet(manager(1), team(), db) as fleet:
            await fleet.run("Go")
    assert '"speaker":"researcher"' in caplog.text


@pytest.mark.parametrize(
    ("participants", "says"),
    [
        ({}, "has no participants"),
        ({"x": 3}, "participant 'x' is int"),
        ({5: team()["coder"]}, "a participant is named 5"),
        ({"": team()["coder"]}, "a participant is named ''"),
        ({"x": lambda: None}, "takes 0 arguments"),
        ({"user": team()["coder"]}, "no participant can be named 'user'"),
    ],
)
def test_what_cannot_take_part_is_refused(participants: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Fleet(manager(1), participants)


def test_a_manager_is_a_model() -> None:
    with pytest.raises(UsageError, match="the manager is str"):
        Fleet("gpt")  # type: ignore[arg-type]


async def test_a_participant_that_returns_no_text_is_an_error(db: str) -> None:
    async def researcher(instruction: str) -> Any:
        return 3

    async with Fleet(manager(1), {**team(), "researcher": researcher}, db) as fleet:
        with pytest.raises(StepError, match="'researcher' returned int"):
            await fleet.run("Go")


async def test_two_runs_at_once_do_not_mix(db: str) -> None:
    async with Fleet(manager(3), team(), db) as fleet:
        one, two = await asyncio.gather(fleet.run("First"), fleet.run("Second"))
        assert one.run_id != two.run_id
        for result, task in ((one, "First"), (two, "Second")):
            shown = json.loads(await fleet.export_checkpoint(result.checkpoint_id))
            assert (shown["context"]["task"], shown["current_round"]) == (task, 3)


async def test_every_run_has_an_id_of_its_own(db: str) -> None:
    async with Fleet(manager(1), team(), db) as fleet:
        first, second = await fleet.run("Go"), await fleet.run("Go")
    assert first.run_id != second.run_id and first.run_id.startswith("fleet_")


async def test_a_stream_gives_the_events_and_the_result_tells_what_a_resume_saved() -> None:
    review = PlanReview(require_human_approval=True)
    async with Fleet(manager(1), team(), "memory://", plan_review=review) as fleet:
        stream = fleet.stream("Go", run_id="boat")
        events = [event async for event in stream]
        assert [event.seq for event in events] == sorted(event.seq for event in events)
        assert {"node.start", "model.text", "effect.complete"} <= {event.type for event in events}
        (asked,) = [event for event in events if event.type == "run.waiting"]
        assert [one["kind"] for one in asked.data["waiting"]] == ["question"]
        waiting = stream.result
        assert (waiting.status, waiting.run_id, waiting.saved.calls) == ("waiting", "boat", 0)
        heard: list[str] = []
        done = await fleet.answer("boat", True, on_event=lambda event: heard.append(event.type))
        assert (done.status, done.waiting) == ("completed", ())
        assert waiting.usage.calls == 2
        assert done.saved.tokens == waiting.usage.tokens < done.usage.tokens
        assert "fleet.answer" in heard
