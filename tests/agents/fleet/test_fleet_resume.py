"""A fleet's checkpoints: made, listed, restored, resumed, forked, marked and cleaned up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fleets import TEAM, Flaky, calls, ledger, manager, team

from surehold import MemoryStorage, Rules
from surehold.agents.fleet.execution import Attempt, Backoff
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.models.model import Message
from surehold.errors import (
    LeaseHeldError,
    NotFoundError,
    ShapeError,
    StepError,
    UsageError,
)


def failing(log: Path, *, round: int, fails: int = 1) -> dict[str, Any]:
    """A team whose participant in that round fails at first."""
    crew = team(log)
    name = TEAM[(round - 1) % 3]
    crew[name] = Flaky(
        crew[name], fails=fails, when=lambda messages: f"part {round}" in messages[-1]["content"]
    )
    return crew


async def failed(fleet: Fleet, task: str = "Go") -> StepError:
    with pytest.raises(StepError) as caught:
        await fleet.run(task)
    return caught.value


async def test_a_failed_round_is_done_again_and_nothing_else(store: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(5, log=log), failing(log, round=3), store) as fleet:
        error = await failed(fleet)
        assert "no network" in str(error)
        assert (fleet.current_round, fleet.state.status) == (2, "failed")
        listed = (await fleet.list_checkpoints(error.run_id))[0]
        assert (listed["status"], listed["current_round"]) == ("error", 2)
        result = await fleet.run(resume_from_checkpoint=listed["checkpoint_id"])
    assert (result.status, result.rounds, result.run_id) == ("completed", 5, error.run_id)
    assert calls(log) == result.usage["calls"] == 2 + 2 * 5 + 2


async def test_the_checkpoint_before_the_failure_is_as_good(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(5, log=log), failing(log, round=3), db) as fleet:
        error = await failed(fleet)
        before = (await fleet.list_checkpoints(error.run_id))[1]
        assert (before["status"], before["current_round"]) == ("in_progress", 2)
        result = await fleet.run(resume_from_checkpoint=before["checkpoint_id"])
    assert (result.run_id, calls(log)) == (error.run_id, 2 + 2 * 5 + 2)


async def test_everything_comes_back(store: str) -> None:
    async with Fleet(manager(3), team(), store) as fleet:
        result = await fleet.run("Analyze")
        third = (await fleet.list_checkpoints(result.run_id))[2]
        saved = fleet.state.to_dict()
    async with Fleet(manager(3), team(), store) as other:
        assert await other.restore_from_checkpoint(third["checkpoint_id"][:23]) is True
        assert other.current_checkpoint_id == third["checkpoint_id"]
        assert (other.task, other.current_round, other.workflow_id) == ("Analyze", 3, result.run_id)
        assert (other.stall_count, other.reset_count) == (0, 0)
        assert other.last_response == "analyst turn 1: do part 3"
        assert other.context == saved["context"]
        assert {name: other.history_of(name) for name in TEAM} == {
            name: saved[f"history:{name}"] for name in TEAM
        }
        assert [one["ledger"] for one in other.state["rounds"]] == [
            one["ledger"] for one in saved["rounds"]
        ]


async def test_another_text_joins_the_history(db: str) -> None:
    seen: list[str] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        seen.append(messages[-2]["content"])
        return ledger(TEAM[done % 3], f"part {done + 1}", satisfied=done >= 3)

    async with Fleet(manager(3, judge=judge), team(), db) as fleet:
        task = asyncio.create_task(fleet.run("Go"))
        while fleet.state is None and not task.done():
            await asyncio.sleep(0)
            if len(seen) == 2:
                task.cancel()
                break
        with pytest.raises(asyncio.CancelledError):
            await task
        newest = (await fleet.list_checkpoints())[0]
        assert newest["status"] == "interrupted"
        result = await fleet.run("Mind the gap", newest["checkpoint_id"])
        assert result.status == "completed"
        said = [one["content"] for one in fleet.state["history"] if one["speaker"] == "user"]
        assert said == ["Mind the gap"]
        assert fleet.task == "Go"
    assert "user: Mind the gap" in seen


async def test_a_text_before_the_answer_leads_to_another_round(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        wanted = 3 if any("One more" in one["content"] for one in messages) else 2
        return ledger(TEAM[done % 3], "go", satisfied=done >= wanted)

    model = Flaky(
        manager(2, judge=judge),
        fails=1,
        when=lambda messages: "The work on the task is over" in messages[-1]["content"],
    )
    async with Fleet(model, team(), db) as fleet:
        error = await failed(fleet)
        assert fleet.state["decision"] == "answer"
        result = await fleet.run("One more", fleet.current_checkpoint_id)
        assert (result.run_id, result.rounds) == (error.run_id, 3)


async def test_a_text_after_the_answer_is_written_leads_to_a_fork(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        wanted = 3 if any("One more" in one["content"] for one in messages) else 2
        return ledger(TEAM[done % 3], "go", satisfied=done >= wanted)

    async with Fleet(manager(2, judge=judge), team(), db) as fleet:
        result = await fleet.run("Go")
        await fleet.graph.manager.delete_checkpoint(result.checkpoint_id)  # as if killed before it
        newest = (await fleet.list_checkpoints())[0]
        assert newest["status"] == "in_progress"
        again = await fleet.run("One more", newest["checkpoint_id"])
        assert again.run_id != result.run_id and again.rounds == 3


async def test_a_text_in_the_middle_of_a_round_is_heard_after_it(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    heard: list[int] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        if any("Be quick" in one["content"] for one in messages):
            heard.append(done)
        return ledger(TEAM[done % 3], f"do part {done + 1}", satisfied=done >= 4)

    model = manager(4, judge=judge, log=log)
    async with Fleet(model, failing(log, round=3), db) as fleet:
        error = await failed(fleet)
        result = await fleet.run("Be quick", (await fleet.list_checkpoints())[0]["checkpoint_id"])
        assert result.run_id == error.run_id
        speakers = [one["speaker"] for one in fleet.state["history"]]
    assert speakers[5:8] == ["analyst", "user", "manager"]
    assert heard == [3, 4]
    assert calls(log) == 2 + 2 * 4 + 2


async def test_the_task_itself_is_no_other_text(db: str, tmp_path: Path) -> None:
    async with Fleet(manager(3), failing(tmp_path / "calls", round=2), db) as fleet:
        await failed(fleet, "Analyze")
        await fleet.run("Analyze", (await fleet.list_checkpoints())[0]["checkpoint_id"])
        assert all(one["speaker"] != "user" for one in fleet.state["history"])


async def test_a_completed_run_gives_its_stored_result(store: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(2, log=log), team(log), store) as fleet:
        first = await fleet.run("Go")
        before = calls(log)
        again = await fleet.run(resume_from_checkpoint=first.checkpoint_id)
    assert (again.answer, again.run_id, calls(log)) == (first.answer, first.run_id, before)


async def test_a_completed_run_goes_on_in_a_fork_with_another_text(db: str) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        wanted = 3 if any("One more" in one["content"] for one in messages) else 2
        return ledger(TEAM[done % 3], "go", satisfied=done >= wanted)

    async with Fleet(manager(2, judge=judge), team(), db) as fleet:
        first = await fleet.run("Go")
        second = await fleet.run("One more", first.checkpoint_id)
        assert second.run_id != first.run_id
        assert (first.rounds, second.rounds) == (2, 3)
        await fleet.restore_from_checkpoint(first.checkpoint_id)
        assert (fleet.state.status, fleet.current_round) == ("completed", 2)


async def test_an_earlier_checkpoint_is_forked_and_paid_for_anew(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(4, log=log), team(log), db) as fleet:
        first = await fleet.run("Go")
        listed = await fleet.list_checkpoints(first.run_id)
        second = next(one for one in listed if one["current_round"] == 2)
        before = calls(log)
        other = await fleet.run(resume_from_checkpoint=second["checkpoint_id"])
        assert (other.rounds, other.status) == (4, "completed")
        assert other.run_id not in (first.run_id, None)
        assert calls(log) - before == 2 * 2 + 2
        assert len(await fleet.list_checkpoints(first.run_id)) == len(listed)


async def test_changed_participants_are_refused_by_name(db: str, tmp_path: Path) -> None:
    async with Fleet(manager(3), failing(tmp_path / "calls", round=2), db) as fleet:
        error = await failed(fleet)
        newest = (await fleet.list_checkpoints())[0]["checkpoint_id"]
    crew = {"researcher": team()["researcher"], "writer": team()["coder"]}
    async with Fleet(manager(3), crew, db) as other:
        before = len(await other.list_checkpoints())
        for call in (other.run("", newest), other.restore_from_checkpoint(newest)):
            with pytest.raises(ShapeError, match="without coder, analyst and with writer") as told:
                await call
            assert told.value.removed == ("coder", "analyst")
            assert told.value.added == ("writer",)
        await other.set_workflow_id(error.run_id)
        with pytest.raises(ShapeError):
            await other.run("Go")
        assert len(await other.list_checkpoints()) == before and other.state is None


async def test_an_unknown_id_changes_nothing(db: str) -> None:
    async with Fleet(manager(1), team(), db) as fleet:
        result = await fleet.run("Go")
        shown = fleet.state
        for call in (
            fleet.run("Go on", "ffffffff"),
            fleet.restore_from_checkpoint("ffffffff"),
            fleet.export_checkpoint("../../etc/passwd"),
        ):
            with pytest.raises(NotFoundError) as caught:
                await call
            assert set(caught.value.nearest) <= {
                one["checkpoint_id"] for one in await fleet.list_checkpoints()
            }
        assert fleet.state is shown and fleet.workflow_id == result.run_id


async def test_the_nearest_ids_are_told(db: str) -> None:
    async with Fleet(manager(1), team(), db) as fleet:
        result = await fleet.run("Go")
        wrong = result.checkpoint_id[:-1] + ("0" if result.checkpoint_id[-1] != "0" else "1")
        with pytest.raises(NotFoundError, match=result.checkpoint_id):
            await fleet.restore_from_checkpoint(wrong)


async def test_a_checkpoint_of_something_else_is_refused() -> None:
    from surehold import CheckpointManager, State

    storage = MemoryStorage()
    other = CheckpointManager(storage).save_checkpoint(State.new({"n": 1}))
    async with Fleet(manager(1), team(), storage) as fleet:
        with pytest.raises(UsageError, match="is not of a fleet"):
            await fleet.restore_from_checkpoint(other)


async def test_without_storage_nothing_is_saved_and_the_result_is_the_same(db: str) -> None:
    async with Fleet(manager(4), team()) as fleet, Fleet(manager(4), team(), db) as saved:
        result, other = await fleet.run("Go"), await saved.run("Go")
        assert await fleet.create_checkpoint({"note": "x"}) is None
        assert await fleet.list_checkpoints() == []
        for call in (fleet.run("", "abc"), fleet.restore_from_checkpoint("abc")):
            with pytest.raises(UsageError, match="saves nothing"):
                await call
        assert (result.answer, result.rounds, result.status, result.usage) == (
            *(other.answer, other.rounds, other.status, other.usage),
        )
        assert result.checkpoint_id is None and fleet.current_checkpoint_id is None
        assert [*fleet.graph.manager.storage.runs(_all())] == []


def _all() -> Any:
    from surehold.storage.base import RunQuery

    return RunQuery()


async def test_a_workflow_id_is_gone_on_with_by_the_same_program(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(3, log=log), failing(log, round=2), db) as fleet:
        fleet.set_workflow_id("nightly")
        assert fleet.workflow_id == "nightly"
        await failed(fleet, "Analyze")
    for _ in range(2):  # the second time it is completed, and gives what it gave
        async with Fleet(manager(3, log=log), team(log), db) as fleet:
            await fleet.set_workflow_id("nightly")
            result = await fleet.run("Analyze")
            assert (result.run_id, result.rounds) == ("nightly", 3)
    assert calls(log) == 2 + 2 * 3 + 2
    async with Fleet(manager(3), team(), db) as fleet:
        await fleet.set_workflow_id("nightly")
        with pytest.raises(UsageError, match="with a different task: 'Analyze'"):
            await fleet.run("Something else")
        assert (await fleet.list_checkpoints("nightly"))[0]["status"] == "completed"


async def test_an_id_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(UsageError):
        await Fleet(manager(1), team()).set_workflow_id("")


async def test_a_task_or_a_checkpoint_is_needed(db: str) -> None:
    async with Fleet(manager(1), team(), db) as fleet:
        with pytest.raises(UsageError, match="there is no task"):
            await fleet.run()


async def test_a_checkpoint_marks_a_moment_with_metadata(store: str) -> None:
    async with Fleet(manager(2), team(), store) as fleet:
        result = await fleet.run("Go")
        marked = await fleet.create_checkpoint({"owner": "ann"})
        found = await fleet.list_checkpoints(metadata={"owner": "ann"})
        assert [one["checkpoint_id"] for one in found] == [marked]
        assert found[0]["metadata"] == {"round": 2, "owner": "ann", "status": "completed"}
        again = await fleet.run(resume_from_checkpoint=marked)
        assert (again.answer, again.run_id) == (result.answer, result.run_id)


async def test_a_checkpoint_before_the_first_run_is_a_run_that_can_begin(db: str) -> None:
    async with Fleet(manager(2), team(), db) as fleet:
        await fleet.set_workflow_id("early")
        made = await fleet.create_checkpoint({"note": "empty"})
        assert (fleet.workflow_id, fleet.task, fleet.current_round) == ("early", "", 0)
        result = await fleet.run("Analyze", made)
        assert (result.run_id, fleet.task, result.rounds) == ("early", "Analyze", 2)


async def test_a_mark_in_a_failed_run_keeps_what_was_paid_for(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with Fleet(manager(3, log=log), failing(log, round=2), db) as fleet:
        error = await failed(fleet)
        marked = await fleet.create_checkpoint({"note": "look at this"})
        assert (await fleet.list_checkpoints())[0]["status"] == "error"
        result = await fleet.run(resume_from_checkpoint=marked)
        assert (result.run_id, calls(log)) == (error.run_id, 2 + 2 * 3 + 2)
        assert "note" not in (await fleet.list_checkpoints())[0]["metadata"]


async def test_a_restored_earlier_moment_is_marked_in_a_fork(db: str) -> None:
    async with Fleet(manager(3), team(), db) as fleet:
        result = await fleet.run("Go")
        second = next(one for one in await fleet.list_checkpoints() if one["current_round"] == 2)
        await fleet.restore_from_checkpoint(second["checkpoint_id"])
        await fleet.create_checkpoint()
        assert fleet.workflow_id != result.run_id and fleet.current_round == 2
        fork = await fleet.fork_checkpoint(second["checkpoint_id"])
        assert (await fleet.list_checkpoints(fork))[0]["current_round"] == 2


async def test_a_run_is_not_marked_while_it_is_executed(db: str) -> None:
    told: list[Exception] = []

    async def researcher(instruction: str) -> str:
        async with Fleet(manager(1), team(), db) as other:
            await other.set_workflow_id("busy")
            try:
                await other.create_checkpoint()
            except LeaseHeldError as error:
                told.append(error)
        return "done"

    async with Fleet(manager(1), {**team(), "researcher": researcher}, db) as fleet:
        await fleet.set_workflow_id("busy")
        assert (await fleet.run("Go")).status == "completed"
    assert len(told) == 1


async def test_the_exported_checkpoint_is_the_json_that_fleets_know(db: str) -> None:
    async with Fleet(manager(3), team(), db) as fleet:
        result = await fleet.run("Go")
        listed = await fleet.list_checkpoints()
        third = next(one for one in reversed(listed) if one["current_round"] == 3)
        shown = json.loads(await fleet.export_checkpoint(third["checkpoint_id"]))
    assert [*shown] == [
        *("checkpoint_id", "workflow_id", "timestamp", "current_round", "stall_count"),
        *("last_response", "context", "metadata"),
    ]
    assert (shown["checkpoint_id"], shown["workflow_id"]) == (
        *(third["checkpoint_id"], result.run_id),
    )
    assert (shown["current_round"], shown["metadata"]["status"]) == (3, "in_progress")
    assert shown["context"]["user_query"] == "Go"
    assert {"checkpoint_id", "workflow_id", "timestamp", "current_round", "metadata"} <= {*third}
    assert third["timestamp"] == shown["timestamp"]


async def test_a_listing_is_filtered(db: str, tmp_path: Path) -> None:
    async with Fleet(manager(3), failing(tmp_path / "calls", round=2), db) as fleet:
        error = await failed(fleet)
        done = await fleet.run("Other")
        assert {one["workflow_id"] for one in await fleet.list_checkpoints()} == {
            *(error.run_id, done.run_id),
        }
        assert [one["workflow_id"] for one in await fleet.list_checkpoints(status="error")] == [
            error.run_id
        ]
        only = await fleet.list_checkpoints(done.run_id, metadata={"round": 1})
        assert [one["current_round"] for one in only] == [1]
        assert len(await fleet.list_checkpoints(limit=2)) == 2


# Automatic resume


class Clock:
    """A sleep that only counts."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_a_failure_is_resumed_by_itself_with_backoff(store: str, tmp_path: Path) -> None:
    log, clock = tmp_path / "calls", Clock()
    backoff = Backoff(sleep=clock.sleep)
    crew = failing(log, round=4, fails=2)
    async with Fleet(manager(5, log=log), crew, store, auto_resume=backoff) as fleet:
        result = await fleet.run("Go")
    assert (result.status, result.rounds, clock.slept) == ("completed", 5, [1.0, 2.0])
    assert calls(log) == result.usage["calls"] == 2 + 2 * 5 + 2
    assert [(one.round, one.waited) for one in result.attempts] == [(3, 1.0), (3, 2.0)]
    first: Attempt = result.attempts[0]
    assert "no network" in first.error and first.saved.tokens > 0 and first.saved.dollars > 0
    assert str(first).startswith("failed after round 3 (ConnectionError: no network); resumed")


async def test_it_is_resumed_only_so_often(db: str, tmp_path: Path) -> None:
    clock = Clock()
    backoff = Backoff(resumes=2, sleep=clock.sleep)
    crew = failing(tmp_path / "calls", round=2, fails=9)
    async with Fleet(manager(3), crew, db, auto_resume=backoff) as fleet:
        error = await failed(fleet)
    assert clock.slept == [1.0, 2.0]
    assert any("resumed 2 times" in note for note in error.__notes__)


async def test_what_is_wrong_in_the_program_is_not_tried_again(db: str) -> None:
    async def researcher(instruction: str) -> Any:
        return 3

    clock = Clock()
    crew = {**team(), "researcher": researcher}
    backoff = Backoff(sleep=clock.sleep)
    async with Fleet(manager(3), crew, db, auto_resume=backoff) as fleet:
        await failed(fleet)
    assert clock.slept == []


@pytest.mark.parametrize("wrong", [{"resumes": -1}, {"factor": 0.5}, {"first": -1.0}])
def test_a_backoff_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Backoff(**wrong)


# Cleaning up


async def test_old_completed_runs_go_and_unfinished_ones_keep_their_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    async with Fleet(manager(2), failing(tmp_path / "calls", round=2), db) as fleet:
        broken = await failed(fleet)
        await fleet.run("Other")
    later = datetime.now(UTC) + timedelta(days=31)
    monkeypatch.setattr("surehold.agents.fleet.checkpoints.datetime", _At(later))
    async with Fleet(manager(2), team(), db, cleanup_after_days=40) as fleet:
        assert await fleet.cleanup() == 0
    async with Fleet(manager(2), team(), db, cleanup_after_days=30) as fleet:
        fleet.graph.manager.retention._clock = lambda: later
        assert await fleet.cleanup() > 0
        left = await fleet.list_checkpoints()
        assert [(one["workflow_id"], one["status"]) for one in left] == [(broken.run_id, "error")]
        resumed = await fleet.run(resume_from_checkpoint=left[0]["checkpoint_id"])
        assert resumed.status == "completed"


class _At:
    """A datetime class for which it is always that moment."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self, zone: object) -> datetime:
        return self._moment

    fromisoformat = staticmethod(datetime.fromisoformat)


async def test_retention_rules_hold_while_a_run_goes_on(db: str) -> None:
    async with Fleet(manager(5), team(), db, retention=Rules(keep_last=2)) as fleet:
        result = await fleet.run("Go")
        assert len(await fleet.list_checkpoints(result.run_id)) == 2
