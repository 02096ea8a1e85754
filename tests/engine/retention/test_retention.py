"""Retention while saving and when asked, on every medium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.engine.conftest import MEDIA

from surehold import AgentState, CheckpointManager, Rules, SQLiteStorage, State
from surehold.core.records import Header
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunQuery

Open = Callable[..., CheckpointManager]


def save(manager: CheckpointManager, count: int, run_id: str = "run", **place: object) -> list[str]:
    state = manager.resume_from_latest(run_id) or State.new({"log": []}, run_id=run_id)
    ids = []
    for _ in range(count):
        step = state.step + 1
        state = state.append("log", f"entry {step} " + "x" * 80).at(step=step, **place)
        ids.append(manager.save_checkpoint(state))
    return ids


def test_when_a_save_returns_what_retention_dropped_is_neither_listed_nor_loadable(
    open_manager: Open,
) -> None:
    manager = open_manager(retention_count=3)
    ids = save(manager, 40)
    assert [e.step for e in manager.list_checkpoints("run")] == [40, 39, 38]
    for gone in ids[:-3]:
        with pytest.raises(NotFoundError):
            manager.load_checkpoint(gone)
    fresh = open_manager(reopen=True)
    for number, kept in enumerate(ids[-3:], 38):
        state = fresh.load_checkpoint(kept)
        assert isinstance(state, State)
        assert len(state["log"]) == number
    assert all(fresh.verify())


def test_hidden_records_are_erased_once_nothing_visible_needs_them(open_manager: Open) -> None:
    manager = open_manager(retention_count=2)
    save(manager, 400)
    records = list(manager.storage.read("run"))
    assert len(records) < 250
    assert sum(record.header.kind == "prune" for record in records) == 1
    assert all(manager.verify())
    manager.cleanup_old_checkpoints("run")
    assert all(open_manager(reopen=True).verify())


def test_a_fork_drops_nothing_of_the_run_it_was_made_from(open_manager: Open) -> None:
    manager = open_manager(retention=Rules(keep_last=1, group_by="name"))
    source = manager.save_checkpoint(State.new({"log": []}, run_id="one", name="job"))
    manager.fork_from_checkpoint(source, "two")
    assert sorted(entry.run_id for entry in manager.list_checkpoints()) == ["one", "two"]


def test_pins_keep_a_checkpoint_until_they_are_taken_off(open_manager: Open) -> None:
    manager = open_manager(retention_count=2)
    ids = save(manager, 1)
    manager.pin(ids[0])
    save(manager, 100)
    assert [e.step for e in manager.list_checkpoints("run")] == [101, 100, 1]
    fresh = open_manager(reopen=True, retention_count=2)
    pinned = fresh.load_checkpoint(ids[0])
    assert isinstance(pinned, State)
    assert len(pinned["log"]) == 1
    fresh.unpin(ids[0])
    save(fresh, 1)
    assert [e.step for e in fresh.list_checkpoints("run")] == [102, 101]
    assert all(fresh.verify())


@pytest.mark.parametrize("rules", [Rules(keep_last=2), Rules(keep_last=2, keep_tags=["keep"])])
def test_a_pin_from_elsewhere_counts_for_the_very_next_save(
    open_manager: Open, rules: Rules
) -> None:
    manager, elsewhere = open_manager(retention=rules), open_manager()
    state = State.new({"log": []}, run_id="run")
    for step in range(1, 9):
        state = state.append("log", step).at(step=step)
        manager.save_checkpoint(state)
    elsewhere.pin(manager.list_checkpoints("run")[-1].checkpoint_id)
    for step in range(9, 12):
        state = state.append("log", step).at(step=step)
        manager.save_checkpoint(state)
    assert [entry.step for entry in manager.list_checkpoints("run")] == [11, 10, 7]


def test_each_kind_is_kept_by_its_own_rule(manager: CheckpointManager, open_manager: Open) -> None:
    manager = open_manager(retention=Rules.by_kind_default())
    for kind in ("routine", "pre_operation", "recovery", "routine") * 5:
        save(manager, 1, kind=kind)
    kinds = [e.kind for e in manager.list_checkpoints("run")]
    assert (kinds.count("routine"), kinds.count("pre_operation")) == (3, 5)
    assert kinds.count("recovery") == 5
    operation = next(e for e in manager.list_checkpoints("run") if e.kind == "pre_operation")
    manager.release(operation.checkpoint_id)
    save(manager, 1)
    assert not manager.exists(operation.checkpoint_id)


def test_tags_given_later_count_for_retention(open_manager: Open) -> None:
    manager = open_manager(retention=Rules(keep_last=2, keep_tags=["keep"]))
    ids = save(manager, 2)
    manager.tag(ids[0], "keep")
    save(manager, 10)
    assert [e.step for e in manager.list_checkpoints("run")] == [12, 11, 1]


def test_agents_are_counted_by_name_over_all_their_runs(open_manager: Open) -> None:
    manager = open_manager(retention_count=10)
    for number in range(50):
        for name in ("agent-1", "agent-10"):
            manager.save_checkpoint(AgentState(agent_id=name, step_number=number))
    for name in ("agent-1", "agent-10"):
        steps = [entry.step for entry in manager.list_checkpoints(name)]
        assert steps == list(range(49, 39, -1))
    assert len(list(manager.storage.runs(RunQuery()))) < 100 - 60
    assert all(open_manager(reopen=True).verify())


def test_cleaning_up_applies_the_rules_to_what_is_there(open_manager: Open) -> None:
    save(open_manager(), 20)
    manager = open_manager(reopen=True, retention=Rules(keep_last=4))
    assert manager.cleanup_old_checkpoints("run") == 16
    assert manager.cleanup_old_checkpoints("run") == 0
    assert [e.step for e in manager.list_checkpoints("run")] == [20, 19, 18, 17]
    assert len(manager.resume_from_latest("run")["log"]) == 20
    save(manager, 1)
    assert [e.step for e in manager.list_checkpoints("run")] == [21, 20, 19, 18]


def test_without_rules_everything_is_kept(open_manager: Open) -> None:
    manager = open_manager()
    save(manager, 30)
    assert manager.cleanup_old_checkpoints("run") == 0
    assert len(manager.list_checkpoints("run")) == 30


def test_old_checkpoints_go_by_age(open_manager: Open) -> None:
    manager = open_manager(retention=Rules(max_age=timedelta(days=7)))
    now = [datetime.now(UTC) - timedelta(days=30)]
    for part in (manager.face.journal, manager.retention):
        part._clock = lambda: now[0]
    save(manager, 3)
    now[0] += timedelta(days=30)
    save(manager, 2)
    assert [e.step for e in manager.list_checkpoints("run")] == [5, 4]


def test_a_branch_keeps_what_it_is_built_on(open_manager: Open) -> None:
    manager = open_manager(retention=Rules(keep_last=2))
    ids = save(manager, 2)
    first = manager.load_checkpoint(ids[0])
    assert isinstance(first, State)
    branch = manager.save_checkpoint(first.append("log", "other way").at(step=2))
    fresh = open_manager(reopen=True)
    loaded = fresh.load_checkpoint(branch)
    assert isinstance(loaded, State)
    assert loaded["log"][-1] == "other way"
    assert len(fresh.list_checkpoints("run")) == 2


def test_scopes_do_not_push_each_other_out(open_manager: Open) -> None:
    manager = open_manager(retention=Rules(keep_last=2))
    outer = State.new({"n": 0}, run_id="run")
    inner = State.new({"m": 0}, run_id="run").at(scope="child")
    manager.save_checkpoint(outer)
    for number in range(1, 9):
        inner = inner.set("m", number).at(step=number)
        manager.save_checkpoint(inner)
    assert [e.step for e in manager.list_checkpoints("run", scope="child")] == [8, 7]
    assert len(manager.list_checkpoints("run", scope="")) == 1
    assert manager.resume_from_latest("run")["n"] == 0


def test_rules_and_a_count_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="both"):
        CheckpointManager("memory://", retention_count=3, retention=Rules(keep_last=2))
    with pytest.raises(UsageError, match="keep_last"):
        CheckpointManager("memory://", retention_count=0)


def test_the_sqlite_file_shrinks_when_history_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    manager = CheckpointManager(SQLiteStorage(path, compress=False))
    state = State.new({"blob": ""}, run_id="run")
    for step in range(60):
        state = state.set("blob", f"{step}" * 50_000).at(step=step)
        manager.save_checkpoint(state)
    manager.storage.compact()
    before = path.stat().st_size
    pruning = CheckpointManager(manager.storage, retention=Rules(keep_last=2))
    assert pruning.cleanup_old_checkpoints("run") == 58
    assert path.stat().st_size < before / 5
    assert len(list(manager.storage.headers(RecordQuery(run_id="run")))) == 2
    manager.storage.close()


def test_the_last_ones_are_counted_in_each_scope(tmp_path: Path) -> None:
    """A nested graph does not push the checkpoints of its parent out."""
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", retention=Rules(keep_last=2)) as saving:
        outer = State.new({"n": 0}, run_id="run")
        for step in range(1, 4):
            saving.save_checkpoint(outer.set("n", step).at(step=step))
        inner = State.new({"n": 0}, run_id="run")
        for step in range(1, 4):
            saving.save_checkpoint(inner.set("n", step).at(step=step, scope="child"))
        listed = saving.list_checkpoints("run")
    assert [(one.scope, one.step) for one in listed] == [
        ("child", 3),
        ("child", 2),
        ("", 3),
        ("", 2),
    ]


@pytest.mark.parametrize("medium", ["memory", "sqlite", "file"])
def test_a_run_that_is_saved_while_it_is_pruned_is_never_deleted_as_empty(
    medium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MEDIA[medium](tmp_path) as storage:
        writer = CheckpointManager(storage, retention=Rules(keep_last=1))
        state = State.new({"n": 0}, run_id="live")
        writer.save_checkpoint(state)
        listed = storage.headers

        def headers(query: RecordQuery) -> Iterator[Header]:
            nonlocal state
            found = listed(query)
            if query.limit == 1 and state.step < 9:
                state = state.set("n", state.step + 1).at(step=state.step + 1)
                writer.save_checkpoint(state)
            return found

        monkeypatch.setattr(storage, "headers", headers)
        CheckpointManager(storage).cleanup_old_checkpoints("live")
        assert CheckpointManager(storage).resume_from_latest("live") == state
