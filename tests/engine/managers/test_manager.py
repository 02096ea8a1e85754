"""What the managers promise, on every medium, compressed and encrypted or not."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import surehold
from surehold import (
    AgentState,
    AsyncCheckpointManager,
    CheckpointManager,
    MemoryStorage,
    State,
)
from surehold.core.values.codec import encode
from surehold.errors import (
    ConflictError,
    CorruptError,
    EncodeError,
    NotFoundError,
    StorageFullError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.base import RecordQuery

Open = Callable[..., CheckpointManager]


def steps(count: int, run_id: str = "run", **options: Any) -> list[State]:
    state = State.new({"messages": []}, run_id=run_id, **options)
    made = []
    for step in range(1, count + 1):
        message = {"role": "user", "content": f"message {step}"}
        state = state.append("messages", message).set("round", step).at(step=step, node="ask")
        made.append(state)
    return made


def test_what_was_saved_comes_back_in_another_process_of_the_same_medium(
    open_manager: Open,
) -> None:
    state = steps(5)[-1]
    checkpoint_id = open_manager().save_checkpoint(state)
    again = open_manager(reopen=True).resume_from_latest("run")
    assert again == state
    assert again.checkpoint_id == checkpoint_id
    assert (again.step, again.node, again.checkpoint_node) == (5, "ask", "ask")


def test_every_state_of_a_long_run_loads_exactly(open_manager: Open) -> None:
    manager = open_manager()
    states = steps(120)
    ids = [manager.save_checkpoint(state) for state in states]
    fresh = open_manager(reopen=True)
    for checkpoint_id, state in zip(ids, states, strict=True):
        assert fresh.load_checkpoint(checkpoint_id) == state
    assert all(fresh.verify())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=6,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), values, max_size=4), max_size=8))
def test_any_sequence_of_states_is_rebuilt_exactly(sequence: list[dict[str, Any]]) -> None:
    manager = CheckpointManager(MemoryStorage())
    states, ids = [], []
    for number, data in enumerate(sequence):
        states.append(State.new(data, run_id="r").at(step=number))
        ids.append(manager.save_checkpoint(states[-1], force=True))
    fresh = CheckpointManager(manager.storage)
    for checkpoint_id, state in zip(ids, states, strict=True):
        loaded = fresh.load_checkpoint(checkpoint_id)
        assert isinstance(loaded, State)
        assert encode(loaded.to_dict()) == encode(state.to_dict())
    assert all(fresh.verify())


def test_a_saved_state_never_aliases_a_live_object(manager: CheckpointManager) -> None:
    items = [{"n": 1}]
    state = State.new({"items": items}, run_id="r")
    manager.save_checkpoint(state)
    items[0]["n"] = 2
    assert manager.resume_from_latest("r")["items"] == [{"n": 1}]
    agent = AgentState(agent_id="a", conversation_history=items)
    manager.save_checkpoint(agent)
    items.append({"n": 3})
    loaded = manager.resume_from_latest("a")
    assert loaded.conversation_history == [{"n": 2}]
    loaded.conversation_history.clear()
    assert manager.resume_from_latest("a").conversation_history == [{"n": 2}]


def test_a_state_that_says_nothing_new_is_not_written_again(manager: CheckpointManager) -> None:
    state = steps(1)[0]
    first = manager.save_checkpoint(state)
    assert manager.save_checkpoint(state) == first
    assert manager.save_checkpoint(state.set("round", 1)) == first
    assert len(manager.list_checkpoints("run")) == 1
    forced = manager.save_checkpoint(state, force=True)
    assert forced != first
    assert len(manager.list_checkpoints("run")) == 2


@pytest.mark.parametrize("given", [5, {"keep_last": 5}])
def test_a_retention_that_is_no_rules_is_refused_before_anything_is_made(
    tmp_path: Path, given: Any
) -> None:
    with pytest.raises(
        UsageError, match=r"retention is .* \(give Rules\(keep_last=20\), or others\)"
    ):
        CheckpointManager(f"sqlite:///{tmp_path}/runs.db", retention=given)
    assert not [*tmp_path.iterdir()]


def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_written(
    manager: CheckpointManager,
) -> None:
    manager.save_checkpoint(steps(1)[0])
    agent = AgentState(agent_id="run", metadata={"deep": [{"bad": object()}]})
    with pytest.raises(EncodeError, match=r"deep\[0\]\.bad"):
        manager.save_checkpoint(agent)
    with pytest.raises(EncodeError, match=r"plan\[1\]"):
        State.new({"plan": [1, object()]})
    assert len(manager.list_checkpoints()) == 1


def test_two_managers_of_one_run_do_not_overwrite_each_other(open_manager: Open) -> None:
    one, two = open_manager(), open_manager()
    one.save_checkpoint(steps(1)[0])
    mine, theirs = one.resume_from_latest("run"), two.resume_from_latest("run")
    one.save_checkpoint(mine.set("round", 2).at(step=2))
    stale = theirs.set("round", 20).at(step=2)
    for _ in range(2):
        with pytest.raises(ConflictError) as caught:
            two.save_checkpoint(stale)
    assert caught.value.run_id == "run"
    fresh = two.resume_from_latest("run")
    assert fresh["round"] == 2
    two.save_checkpoint(fresh.set("round", 3).at(step=3))
    assert [entry.step for entry in two.list_checkpoints("run")] == [3, 2, 1]
    assert all(one.verify())


def test_a_stale_state_is_noticed_by_a_manager_that_has_not_seen_the_run(
    open_manager: Open,
) -> None:
    first = open_manager()
    first.save_checkpoint(steps(1)[0])
    old = first.resume_from_latest("run")
    second = open_manager()
    second.save_checkpoint(second.resume_from_latest("run").set("round", 5).at(step=2))
    with pytest.raises(ConflictError, match="was continued to step 2"):
        open_manager().save_checkpoint(old.set("round", 6).at(step=2))


def test_a_note_from_outside_does_not_stop_a_run(open_manager: Open) -> None:
    running, outside = open_manager(), open_manager()
    state = steps(1)[0]
    checkpoint_id = running.save_checkpoint(state)
    outside.tag(checkpoint_id, "good")
    outside.pin(checkpoint_id)
    running.save_checkpoint(state.set("round", 2).at(step=2))
    assert [entry.step for entry in running.list_checkpoints("run")] == [2, 1]
    assert all(running.verify())


def test_latest_is_the_last_saved_whatever_the_clock_says(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [datetime.now(UTC)]
    manager.face.journal._clock = lambda: now[0]  # the engine's clock is handed in
    first, second = steps(2)
    manager.save_checkpoint(first)
    now[0] -= timedelta(hours=1)
    manager.save_checkpoint(second)
    assert manager.resume_from_latest("run") == second
    assert [entry.step for entry in manager.list_checkpoints("run")] == [2, 1]


def test_going_on_from_an_old_checkpoint_branches_inside_the_journal(open_manager: Open) -> None:
    manager = open_manager()
    states = steps(6)
    ids = [manager.save_checkpoint(state) for state in states]
    old = manager.load_checkpoint(ids[2])
    assert isinstance(old, State)
    branched = old.set("round", 33).at(step=4)
    new_id = manager.save_checkpoint(branched)
    fresh = open_manager(reopen=True)
    assert fresh.resume_from_latest("run") == branched
    assert fresh.latest("run").parent_checkpoint_id == ids[2]
    for checkpoint_id, state in zip([*ids, new_id], [*states, branched], strict=True):
        assert fresh.load_checkpoint(checkpoint_id) == state
    assert fresh.get_checkpoint_tree("run")[ids[2]] == [ids[3], new_id]


def test_a_fork_depends_on_nothing_and_leaves_its_source_alone(open_manager: Open) -> None:
    manager = open_manager()
    states = steps(6, name="report")
    ids = [manager.save_checkpoint(state) for state in states]
    fork = manager.fork_from_checkpoint(ids[3], run_id="what-if")
    assert isinstance(fork, State)
    assert (fork.run_id, fork.name, fork.step, fork.kind) == ("what-if", "report", 4, "fork")
    assert fork.to_dict() == states[3].to_dict()
    assert fork.metadata["forked_from"]["checkpoint_id"] == ids[3]
    manager.save_checkpoint(fork.set("round", 99).at(step=5, kind="routine"))
    assert manager.resume_from_latest("run") == states[-1]
    manager.delete_run("run")
    manager = open_manager(reopen=True)
    assert manager.resume_from_latest("what-if")["round"] == 99
    again = manager.fork_from_checkpoint(fork.checkpoint_id or "", run_id="fork-of-fork")
    assert isinstance(again, State)
    assert again.run_id == "fork-of-fork"
    with pytest.raises(UsageError, match="already"):
        manager.fork_from_checkpoint(fork.checkpoint_id or "", run_id="what-if")


def test_an_agent_state_without_a_run_begins_or_continues_one(open_manager: Open) -> None:
    manager = open_manager()
    for number in range(3):
        manager.save_checkpoint(AgentState(agent_id="researcher", step_number=number))
    assert len({entry.run_id for entry in manager.list_checkpoints("researcher")}) == 1
    manager.save_checkpoint(AgentState(agent_id="researcher"))
    assert len({entry.run_id for entry in manager.list_checkpoints("researcher")}) == 2
    state = AgentState(agent_id="researcher", step_number=7, metadata={"n": 1})
    first = manager.save_checkpoint(state)
    assert first == state.checkpoint_id
    run_id = state.run_id
    state.conversation_history.append({"role": "user", "content": "go on"})
    state.step_number = 8
    second = manager.save_checkpoint(state)
    assert (state.run_id, state.checkpoint_id) == (run_id, second)
    assert state.parent_checkpoint_id == first != second
    loaded = open_manager(reopen=True).resume_from_latest("researcher")
    assert type(loaded) is AgentState
    assert loaded == state


def test_resuming_by_name_takes_the_newest_run_that_is_not_completed(
    manager: CheckpointManager,
) -> None:
    for run_id, status in [("a", "failed"), ("b", "running"), ("c", "completed")]:
        manager.save_checkpoint(State.new(run_id=run_id, name="job").at(step=1, status=status))
    assert manager.resume_from_latest("job").run_id == "b"
    manager.save_checkpoint(manager.resume_from_latest("b").at(status="completed"))
    assert manager.resume_from_latest("job").run_id == "a"
    manager.delete_run("a")
    assert manager.resume_from_latest("job") is None
    assert manager.latest("job") is None
    assert manager.resume_from_latest("c").status == "completed"
    assert manager.resume_from_latest("nobody") is None


def test_agents_whose_names_begin_alike_are_told_apart(manager: CheckpointManager) -> None:
    for name in ["agent-1", "agent-10", "Agent-1", "../agent-1", "agent 1", "агент"]:
        manager.save_checkpoint(AgentState(agent_id=name, metadata={"me": name}))
    for name in ["agent-1", "agent-10", "Agent-1", "../agent-1", "agent 1", "агент"]:
        assert manager.resume_from_latest(name).metadata == {"me": name}
        assert len(manager.list_checkpoints(name)) == 1
    for bad in ["", "a\0b"]:
        with pytest.raises(UsageError):
            manager.save_checkpoint(AgentState(agent_id=bad))
        with pytest.raises(UsageError):
            State.new(run_id=bad)


def test_listing_filters_and_pages(manager: CheckpointManager) -> None:
    ids = []
    for number, state in enumerate(steps(9, name="n")):
        kind = "manual" if number % 3 == 0 else "routine"
        placed = state.at(kind=kind, tags=["even"] if number % 2 == 0 else [])
        ids.append(manager.save_checkpoint(placed.at(metadata={"number": number})))
    manager.save_checkpoint(State.new(run_id="other").at(status="failed"))
    assert [e.checkpoint_id for e in manager.list_checkpoints("run")] == ids[::-1]
    assert [e.checkpoint_id for e in manager.list_checkpoints("n", limit=2)] == ids[:-3:-1]
    page = manager.list_checkpoints("run", limit=4, before=ids[6])
    assert [e.checkpoint_id for e in page] == ids[5:1:-1]
    assert [e.step for e in manager.list_checkpoints(kind="manual")] == [7, 4, 1]
    assert [e.step for e in manager.list_checkpoints(tag="even", limit=2)] == [9, 7]
    assert [e.step for e in manager.list_checkpoints(metadata={"number": 4})] == [5]
    assert [e.run_id for e in manager.list_checkpoints(status="error")] == ["other"]
    future = datetime.now(UTC) + timedelta(days=1)
    assert manager.list_checkpoints(since=future) == []
    assert len(manager.list_checkpoints(until=future)) == 10
    with pytest.raises(UsageError, match="time zone"):
        manager.list_checkpoints(since=datetime(2026, 1, 1))


def test_a_listing_tells_what_a_checkpoint_is(manager: CheckpointManager) -> None:
    state = steps(3)[-1].at(tags=["x"], metadata={"cost": 2})
    checkpoint_id = manager.save_checkpoint(state)
    entry = manager.list_checkpoints("run")[0]
    text = len(msgspec.json.encode(state.to_dict()))
    assert (entry.checkpoint_id, entry.run_id, entry.step, entry.node) == (
        checkpoint_id,
        "run",
        3,
        "ask",
    )
    assert entry.size_bytes == text
    assert entry.stored_bytes > 0
    assert (entry.tags, entry.metadata) == (("x",), {"cost": 2})
    assert abs(datetime.now(UTC) - entry.timestamp) < timedelta(minutes=1)


def test_tags_can_be_given_and_taken_later(open_manager: Open) -> None:
    manager = open_manager()
    ids = [manager.save_checkpoint(state) for state in steps(3)]
    manager.tag(ids[0], "good", "shown")
    manager.tag(ids[1], "good")
    manager.tag(ids[0], remove=["good"])
    fresh = open_manager(reopen=True)
    assert [e.checkpoint_id for e in fresh.list_checkpoints(tag="good")] == [ids[1]]
    assert [e.tags for e in fresh.list_checkpoints("run")] == [(), ("good",), ("shown",)]
    with pytest.raises(UsageError):
        manager.tag(ids[0], "")


def test_ids_are_found_by_a_unique_prefix(manager: CheckpointManager) -> None:
    first, second = (manager.save_checkpoint(state) for state in steps(2))
    loaded = manager.load_checkpoint(first)
    assert isinstance(loaded, State)
    assert loaded.step == 1
    common = next(n for n in range(36) if first[n] != second[n])
    assert manager.load_checkpoint(second[: common + 1]).step == 2  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="not unique"):
        manager.load_checkpoint(first[:common])
    with pytest.raises(NotFoundError, match="no checkpoint"):
        manager.load_checkpoint("nothing")
    assert manager.exists(first)
    assert not manager.exists(first[:-1])


def test_a_deleted_checkpoint_is_gone_and_the_others_load(open_manager: Open) -> None:
    manager = open_manager()
    states = steps(8)
    ids = [manager.save_checkpoint(state) for state in states]
    for gone in (0, 3, 7):
        manager.delete_checkpoint(ids[gone])
        with pytest.raises(NotFoundError):
            manager.load_checkpoint(ids[gone])
        assert not manager.exists(ids[gone])
    fresh = open_manager(reopen=True)
    kept = [number for number in range(8) if number not in (0, 3, 7)]
    assert [e.step for e in fresh.list_checkpoints("run")] == [n + 1 for n in reversed(kept)]
    for number in kept:
        assert fresh.load_checkpoint(ids[number]) == states[number]
    assert fresh.resume_from_latest("run") == states[6]
    assert all(fresh.verify())


def test_a_deleted_run_is_gone_whole_and_its_id_can_be_used_again(open_manager: Open) -> None:
    manager = open_manager()
    states = steps(4)
    for state in states:
        manager.save_checkpoint(state)
    assert manager.delete_run("run") >= 4
    assert manager.resume_from_latest("run") is None
    with pytest.raises(NotFoundError):
        manager.delete_run("run")
    manager.save_checkpoint(steps(1)[0])
    assert [e.step for e in open_manager(reopen=True).list_checkpoints("run")] == [1]


def test_history_and_blame_tell_what_each_step_changed(manager: CheckpointManager) -> None:
    ids = [manager.save_checkpoint(state) for state in steps(3)]
    last = manager.load_checkpoint(ids[-1])
    assert isinstance(last, State)
    manager.save_checkpoint(last.set("verdict", {"ok": True}).at(step=4))
    entries = manager.history("run")
    assert [entry.checkpoint.step for entry in entries] == [1, 2, 3, 4]
    assert [(c.op, c.path) for c in entries[0].changes] == [("add", "/messages"), ("add", "/round")]
    assert [(c.op, c.path) for c in entries[1].changes] == [
        ("add", "/messages/-"),
        ("replace", "/round"),
    ]
    assert entries[3].changes[0].value == {"ok": True}
    assert entries[1].state["round"] == 2  # type: ignore[index]
    assert manager.blame("run", "round").step == 3
    assert manager.blame("run", "verdict.ok").step == 4
    assert manager.blame("run", "/messages/0").step == 1
    assert manager.blame("run", "nothing") is None
    with pytest.raises(NotFoundError):
        manager.history("nobody")


def test_the_difference_of_two_checkpoints_is_what_turns_one_into_the_other(
    manager: CheckpointManager,
) -> None:
    states = steps(4)
    ids = [manager.save_checkpoint(state) for state in states]
    forward = manager.diff_checkpoints(ids[0], ids[3])
    assert [(c.op, c.path) for c in forward] == [("add", "/messages/-")] * 3 + [
        ("replace", "/round")
    ]
    assert [c.op for c in manager.diff_checkpoints(ids[3], ids[0])] == ["remove"] * 3 + ["replace"]
    assert manager.diff_checkpoints(ids[1], ids[1]) == ()


def test_a_state_saves_itself_through_a_manager_a_storage_or_a_name(
    manager: CheckpointManager,
) -> None:
    state = State.new({"n": 1})
    for target in (manager, MemoryStorage(), "memory"):
        assert state.checkpoint(target)
        if target == "memory":
            store = surehold.get_checkpoint_store("memory")
            assert CheckpointManager(store).resume_from_latest(state.run_id) is not None
    with pytest.raises(NotFoundError):
        state.checkpoint("nowhere")


def test_secrets_are_carried_and_never_stored(manager: CheckpointManager) -> None:
    state = State.new({"n": 1}, run_id="r", secrets={"key": "hunter2"}).set("n", 2)
    assert state.secrets["key"] == "hunter2"
    manager.save_checkpoint(state)
    assert manager.resume_from_latest("r").secrets == {}
    stored = b"".join(record.text + record.body for record in manager.storage.read("r"))
    assert b"hunter2" not in stored
    assert "hunter2" not in repr(state)


def test_a_snapshot_is_a_copy_with_a_summary(manager: CheckpointManager) -> None:
    agent = AgentState(agent_id="a", conversation_history=[{"n": 1}])
    snapshot = manager.create_snapshot(agent, "before deploy")
    agent.conversation_history.append({"n": 2})
    summary = snapshot.get_summary()
    assert summary["conversation_turns"] == 1
    assert summary["reason"] == "before deploy"
    assert manager.list_checkpoints("a") == []


def test_a_missing_record_is_corruption_and_not_an_older_state() -> None:
    class Forgetful(MemoryStorage):
        lost: int | None = None

        def read(self, run_id: str, **bounds: Any) -> Any:
            return (r for r in super().read(run_id, **bounds) if r.header.seq != self.lost)

        def headers(self, query: RecordQuery) -> Any:
            return (h for h in super().headers(query) if h.seq != self.lost)

    storage = Forgetful()
    manager = CheckpointManager(storage)
    ids = [manager.save_checkpoint(state) for state in steps(5)]
    storage.lost = 5
    with pytest.raises(CorruptError, match="not the newest"):
        CheckpointManager(storage).resume_from_latest("run")
    storage.lost = 4
    with pytest.raises(CorruptError):
        CheckpointManager(storage).load_checkpoint(ids[4])
    assert not CheckpointManager(storage).verify()[0]


class Failing(MemoryStorage):
    """A memory that refuses the next so many appends."""

    failures: list[Exception]

    def append(self, batches: Any) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        return super().append(batches)


def test_a_failed_save_is_an_error_a_warning_or_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Failing()
    state = steps(1)[0]
    storage.failures = [StorageFullError("full")]
    manager = CheckpointManager(storage)
    with pytest.raises(StorageFullError):
        manager.save_checkpoint(state)
    assert manager.save_checkpoint(state)
    storage.failures = [StorageFullError("full")]
    warning = CheckpointManager(storage, on_save_failure="warn")
    assert warning.save_checkpoint(state.set("round", 9)) == ""
    assert "was not saved" in caplog.text
    storage.failures = [StorageUnavailableError("busy"), StorageUnavailableError("busy")]
    retrying = CheckpointManager(storage, on_save_failure="retry")
    assert retrying.save_checkpoint(state.set("round", 10))
    storage.failures = [StorageFullError("full")]
    with pytest.raises(StorageFullError):
        retrying.save_checkpoint(state.set("round", 11))
    with pytest.raises(UsageError, match="on_save_failure"):
        CheckpointManager(storage, on_save_failure="ignore")  # type: ignore[arg-type]


def test_after_a_failed_save_the_run_goes_on_where_the_storage_is() -> None:
    storage = Failing()
    storage.failures = []
    manager = CheckpointManager(storage)
    for state in steps(3):
        manager.save_checkpoint(state)
        storage.failures = [StorageUnavailableError("gone")]
        with pytest.raises(StorageUnavailableError):
            manager.save_checkpoint(state.set("extra", 1))
    assert [e.step for e in manager.list_checkpoints("run")] == [3, 2, 1]
    assert all(manager.verify())


def test_triggers_count_from_what_was_saved(open_manager: Open) -> None:
    manager = open_manager(every=5)
    assert not manager.should_checkpoint("run", 1, 0.0)
    assert manager.should_checkpoint("run", 6, 1.0)
    manager.save_checkpoint(steps(6)[-1])
    assert not manager.should_checkpoint("run", 7, 2.0)
    assert manager.should_checkpoint("run", 11, 3.0)
    resumed = open_manager(reopen=True, every=5)
    resumed.resume_from_latest("run")
    assert not resumed.should_checkpoint("run", 7)
    assert resumed.should_checkpoint("run", 11)


def test_both_managers_have_the_same_methods() -> None:
    def public(cls: type) -> dict[str, list[str]]:
        return {
            name: [p for p in inspect.signature(member).parameters if p != "self"]
            for name, member in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
        }

    blocking, awaited = public(CheckpointManager), public(AsyncCheckpointManager)
    # Only the awaited one has a thread of its own.
    own = {name: awaited.pop(name) for name in ("flush", "finish")}
    assert own and blocking == awaited
    assert (
        inspect.signature(CheckpointManager).parameters
        == inspect.signature(AsyncCheckpointManager).parameters
    )


@pytest.mark.figures
def test_saving_costs_what_changed_and_not_what_the_state_weighs() -> None:
    def median_save(size: int) -> float:
        manager = CheckpointManager(MemoryStorage())
        state = State.new({"big": ["x" * 1000] * size, "n": 0}, run_id="r")
        manager.save_checkpoint(state)
        times = []
        for number in range(60):
            state = state.set("n", number).at(step=number)
            began = time.perf_counter()
            manager.save_checkpoint(state)
            times.append(time.perf_counter() - began)
        return sorted(times)[30]

    assert median_save(5000) < 5 * median_save(50)


def test_a_later_record_of_the_same_id_supersedes_the_earlier(open_manager: Open) -> None:
    manager = open_manager()
    for step in (1, 2, 3):
        state = AgentState(checkpoint_id="mine", agent_id="a", run_id="r", step_number=step)
        assert manager.save_checkpoint(state) == "mine"
    fresh = open_manager(reopen=True)
    assert [entry.step for entry in fresh.list_checkpoints("r")] == [3]
    loaded = fresh.load_checkpoint("mine")
    assert isinstance(loaded, AgentState)
    assert loaded.step_number == 3
    assert all(fresh.verify())
