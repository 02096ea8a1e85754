"""What a journal tells of itself: who wrote an item, what a run cost, what was missed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import apsw
import msgspec
import pytest

import surehold
from surehold import CheckpointManager, MemoryStorage, Rules, State
from surehold.core.records.lease import Lease
from surehold.engine.repair.verification import verify_headers
from surehold.engine.retention.bulk import forget, plan_forget, plan_freeing
from surehold.engine.runs import check_not_held, status_of_run
from surehold.errors import LeaseHeldError
from surehold.storage.base import RunQuery, abandon, is_live, this_process
from surehold.views.forks import fork_origins
from surehold.views.runs import summaries
from surehold.views.stats import Figures, Latency
from surehold.views.timeline import timeline


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
    return CheckpointManager(f"sqlite:///{tmp_path}/runs.db")


def saved(manager: CheckpointManager, run_id: str, steps: int) -> State:
    state = State.new({"items": [], "deep": {"list": []}}, run_id=run_id, name="job")
    for step in range(1, steps + 1):
        state = state.append("items", f"item {step}").at(step=step)
        state = state.set("deep", {"list": [*state["deep"]["list"], {"n": step}]})
        manager.save_checkpoint(state)
    return state


def test_an_appended_item_is_blamed_on_the_step_that_appended_it(
    manager: CheckpointManager,
) -> None:
    saved(manager, "run", 5)
    for path, step in (("/items/0", 1), ("/items/3", 4), ("/deep/list/2/n", 3), ("items", 5)):
        found = manager.blame("run", path)
        assert found is not None and found.step == step, path
    assert manager.blame("run", "/nothing") is None


def test_in_what_order_keys_stand_is_no_difference(manager: CheckpointManager) -> None:
    one = manager.save_checkpoint(State.new({"a": 1, "b": 2}, run_id="one"))
    two = manager.save_checkpoint(State.new({"b": 2, "a": 1}, run_id="two"))
    three = manager.save_checkpoint(State.new({"c": 3, "b": 2}, run_id="three"))
    assert manager.diff_checkpoints(one, two) == ()
    changes = manager.diff_checkpoints(one, three)
    assert [(change.op, change.path) for change in changes] == [("remove", "/a"), ("add", "/c")]


def test_a_timeline_gives_the_newest_checkpoints_with_what_each_changed(
    manager: CheckpointManager,
) -> None:
    saved(manager, "run", 5)
    reader, retention = manager.reader, manager.retention
    run = reader.run("run")
    assert run is not None
    moments, after = timeline(reader, retention, run, limit=2)
    assert [moment.header.step for moment in moments] == [5, 4]
    assert {change.path for change in moments[0].changes} >= {"/items/-"}
    manager.pin(moments[1].header.id)
    run = reader.run("run")
    assert run is not None
    moments, after = timeline(reader, retention, run)
    assert [moment.pinned for moment in moments] == [False, True, False, False, False]
    assert [told.kind for told in after] == ["pin"]


def test_a_plan_forgets_nothing_until_it_is_carried_out(manager: CheckpointManager) -> None:
    saved(manager, "a", 6)
    saved(manager, "b", 3)
    reader, retention = manager.reader, manager.retention
    runs = list(reader.runs_of("job"))
    decisions = plan_forget(reader, retention, runs, Rules(keep_last=2), datetime.now(UTC), UTC)
    assert len(decisions) == 9 and sum(one.keep for one in decisions) == 4
    assert len(manager.list_checkpoints("a")) == 6
    assert sorted(forget(reader, retention, decisions)) == ["a", "b"]
    assert [point.step for point in manager.list_checkpoints("a")] == [6, 5]
    assert sorted(forget(reader, retention, decisions)) == ["a", "b"]  # again: nothing more goes
    assert [point.step for point in manager.list_checkpoints("b")] == [3, 2]


def test_rules_over_a_name_and_over_all(manager: CheckpointManager) -> None:
    for run in ("a", "b"):
        saved(manager, run, 3)
    manager.save_checkpoint(State.new({"n": 1}, run_id="nameless"))
    reader, retention = manager.reader, manager.retention
    runs = [run for name in ("job", "nameless") for run in reader.runs_of(name)]
    now = datetime.now(UTC) + timedelta(seconds=1)
    for group_by, kept in (("name", {"b": 1, "nameless": 1}), ("run", {"a": 1, "b": 1})):
        rules = Rules(keep_last=1, group_by=group_by)  # type: ignore[arg-type]
        decisions = plan_forget(reader, retention, runs, rules, now, UTC)
        counts = {run: 0 for run in ("a", "b", "nameless")}
        for decision in decisions:
            counts[decision.header.run_id] += decision.keep
        assert kept.items() <= counts.items()
    everything = plan_forget(reader, retention, runs, Rules(keep_last=1, group_by="all"), now, UTC)
    assert sum("last 1/1" in one.reasons for one in everything) == 1


def test_what_a_run_without_checkpoints_takes_can_all_be_freed(manager: CheckpointManager) -> None:
    saved(manager, "run", 3)
    reader, retention = manager.reader, manager.retention
    run = reader.run("run")
    assert run is not None and plan_freeing(retention, run) is None
    manager.storage.delete("run", hide=[1, 2, 3])
    run = reader.run("run")
    assert run is not None
    freed = plan_freeing(retention, run)
    assert freed is not None and freed.records == 3


def test_verifying_headers_finds_a_record_that_is_gone(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    saved(manager, "run", 3)
    reader = manager.reader
    run = reader.run("run")
    assert run is not None and verify_headers(reader, run)
    behind = apsw.Connection(f"{tmp_path}/runs.db")
    behind.execute("DELETE FROM records WHERE seq = 1")
    behind.close()
    verdict = verify_headers(reader, run)
    assert not verdict and "record 1 " in verdict.problems[0]


def test_a_run_that_nothing_has_executed_is_saved_and_a_thread_may_run(
    manager: CheckpointManager,
) -> None:
    saved(manager, "run", 1)
    run = manager.reader.run("run")
    assert run is not None and run.door == "manager"
    assert status_of_run(manager.storage, run) == "saved", "nothing executes it"
    executed = msgspec.structs.replace(run, door="graph")
    assert status_of_run(manager.storage, executed) == "saved", "a fork that nothing executed"
    thread = msgspec.structs.replace(run, door="thread")
    assert status_of_run(manager.storage, thread) == "running"
    mine = Lease("run", 1, this_process(), 100.0)
    assert is_live(mine, 99.0) and not is_live(mine, 101.0) and not is_live(None, 0.0)


def test_forks_are_known_by_where_they_began(manager: CheckpointManager) -> None:
    saved(manager, "run", 3)
    second = manager.list_checkpoints("run")[1]
    manager.fork_from_checkpoint(second.checkpoint_id, "fork")
    stranger = State.new({"n": 1}, run_id="odd").at(kind="fork", metadata={"forked_from": "?"})
    manager.save_checkpoint(stranger)
    origins = fork_origins(manager.storage)
    assert {run: (origin.run_id, origin.step) for run, origin in origins.items()} == {
        "fork": ("run", 2)
    }
    reader, retention = manager.reader, manager.retention
    told = {one.run_id: one for one in summaries(retention, manager.storage, reader.runs_of("job"))}
    assert told["run"].forks == 1 and told["fork"].forked_from == origins["fork"]


def test_figures_count_every_checkpoint_once(manager: CheckpointManager) -> None:
    saved(manager, "a", 4)
    saved(manager, "b", 2)
    figures = Figures()
    for run in manager.reader.runs_of("job"):
        figures.take(manager.reader, run)
    assert sum(one.checkpoints for one in figures.by_kind.values()) == 6
    assert {name: one.checkpoints for name, one in figures.by_run.items()} == {"a": 4, "b": 2}
    assert len(figures.steps) == 4 and figures.resumes == {}
    assert Latency.of("load", [3.0, 1.0, 2.0]) == Latency("load", 3, 2.0, 3.0, 3.0)


def test_a_run_that_ends_while_it_is_looked_at_is_not_stale() -> None:
    class Ending(MemoryStorage):
        """Lets the run end between the look at its head and the look at its lease."""

        def lease_of(self, run_id: str) -> Lease | None:
            if live.status == "running":
                live.__exit__(None, None, None)
            return super().lease_of(run_id)

    storage = Ending()
    live = surehold.run("r", storage=storage).__enter__()
    live.checkpoint(n=1)
    (seen,) = storage.runs(RunQuery(run_id="r"))
    assert seen.status == "running"
    assert status_of_run(storage, seen) == "completed"


def test_a_run_whose_lease_this_process_could_not_release_is_stale_and_takes_answers() -> None:
    storage = MemoryStorage()
    manager = CheckpointManager(storage)
    manager.save_checkpoint(State.new({}, run_id="r"))
    lease = storage.take_lease("r", this_process(), now=time.time(), ttl=60)
    (run,) = storage.runs(RunQuery(run_id="r"))
    run = msgspec.structs.replace(run, door="loop")
    assert status_of_run(storage, run) == "running"
    with pytest.raises(LeaseHeldError):
        check_not_held(manager.reader, "r")
    abandon(lease)
    assert status_of_run(storage, run) == "stale"
    check_not_held(manager.reader, "r")
