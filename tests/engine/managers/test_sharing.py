"""Several managers on one storage, or a storage that fails: nobody's work is lost or spoilt."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar

import pytest
from tests.engine.conftest import KEY

import surehold
from surehold import AgentState, CheckpointManager, MemoryStorage, Rules, State, StateManager
from surehold.core.records.record import Header
from surehold.engine.commit import engine_of
from surehold.errors import ConflictError, NotFoundError, StorageError, SureholdError
from surehold.storage.base import Batch, RecordQuery

Open = Callable[..., CheckpointManager]


def save(manager: CheckpointManager, count: int, run_id: str = "run", size: int = 20) -> list[str]:
    state = manager.resume_from_latest(run_id) or State.new({"log": []}, run_id=run_id)
    ids = []
    for _ in range(count):
        step = state.step + 1
        state = state.append("log", f"{step} ".ljust(size, "x")).at(step=step)
        ids.append(manager.save_checkpoint(state))
    return ids


class Failing(MemoryStorage):
    """Raises a `StorageError` in the call that is named, once, before or after it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.fail = ""

    def _raise(self, call: str) -> None:
        if self.fail == call:
            self.fail = ""
            raise StorageError("the disk is gone")

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self._raise("append")
        done = super().append(batches)
        self._raise("append, after it was done")
        return done

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        self._raise(f"headers of {query.kind}")
        return super().headers(query)

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        self._raise("erase" if erase else "delete")
        return super().delete(run_id, hide=hide, erase=erase)


@pytest.mark.parametrize("call", ["append", "append, after it was done"])
def test_a_save_that_failed_can_be_tried_again_whether_it_was_stored_or_not(call: str) -> None:
    storage = Failing()
    manager = CheckpointManager(storage)
    state = State.new({"n": 0}, run_id="run")
    for step in range(1, 4):
        state = state.set("n", step).at(step=step)
        storage.fail = call
        with pytest.raises(StorageError):
            manager.save_checkpoint(state)
        checkpoint_id = manager.save_checkpoint(state)
        assert manager.load_checkpoint(checkpoint_id) == state
    assert [entry.step for entry in manager.list_checkpoints("run")] == [3, 2, 1]
    assert all(manager.verify())


def test_what_was_stored_although_it_failed_is_gone_on_from() -> None:
    storage = Failing()
    manager = CheckpointManager(storage, retention_count=2)
    state = State.new({"n": 0}, run_id="run")
    manager.save_checkpoint(state.at(step=1))
    storage.fail = "append, after it was done"
    with pytest.raises(StorageError):
        manager.save_checkpoint(state.set("n", 2).at(step=2))
    manager.save_checkpoint(state.set("n", 3).at(step=3))
    entries = manager.list_checkpoints("run")
    assert [entry.step for entry in entries] == [3, 2]
    assert entries[0].parent_checkpoint_id == entries[1].checkpoint_id
    assert all(manager.verify())


def test_one_who_saved_in_between_is_not_taken_for_a_failed_save() -> None:
    storage = Failing()
    manager, other = CheckpointManager(storage), CheckpointManager(storage)
    state = State.new({"n": 0}, run_id="run").at(step=1)
    manager.save_checkpoint(state)
    storage.fail = "append"
    with pytest.raises(StorageError):
        manager.save_checkpoint(state.at(step=2))
    other.save_checkpoint(other.resume_from_latest("run").set("n", 9).at(step=2))
    with pytest.raises(ConflictError):
        manager.save_checkpoint(state.at(step=2))


def test_a_failure_while_a_save_is_prepared_does_not_make_the_next_one_a_lie() -> None:
    storage = Failing()
    manager = CheckpointManager(storage, retention_count=2)
    state = State.new({"n": 1}, run_id="run").at(step=1)
    storage.fail = "append"
    with pytest.raises(StorageError):
        manager.save_checkpoint(state)
    assert manager.load_checkpoint(manager.save_checkpoint(state)) == state


def test_a_save_is_stored_even_if_retention_cannot_be_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Failing()
    manager = CheckpointManager(storage, retention_count=2)
    state = State.new({"n": 1}, run_id="run").at(step=1)
    storage.fail = "headers of None"
    with caplog.at_level(logging.WARNING, "surehold.checkpoint"):
        assert manager.load_checkpoint(manager.save_checkpoint(state)) == state
    assert storage.fail == "" and "retention was not applied" in caplog.text


def test_pins_that_could_not_be_read_are_not_taken_for_none() -> None:
    storage = Failing()
    manager = CheckpointManager(storage, retention_count=2)
    first = save(manager, 1)[0]
    manager.pin(first)
    state = manager.resume_from_latest("run")
    for step in range(2, 6):
        for kind in ("pin", "release", "tag"):
            storage.fail = f"headers of {kind}"
            manager.save_checkpoint(state.at(step=step))
            storage.fail = ""
    manager.cleanup_old_checkpoints("run")
    assert [entry.step for entry in manager.list_checkpoints("run")] == [5, 4, 1]


def test_a_save_is_no_failure_because_space_could_not_be_freed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Failing()
    manager = CheckpointManager(storage, retention_count=2)
    storage.fail = "erase"
    with caplog.at_level(logging.WARNING, "surehold.checkpoint"):
        save(manager, 120, size=200)
    assert storage.fail == ""
    assert "not freed" in caplog.text
    save(manager, 120, size=200)
    assert len(list(storage.read("run"))) < 150
    assert all(manager.verify())


def test_a_fork_that_was_not_stored_is_an_error_even_where_saves_only_warn() -> None:
    storage = Failing()
    manager = CheckpointManager(storage, on_save_failure="warn")
    first = save(manager, 1)[0]
    for call in (lambda: manager.fork_from_checkpoint(first, "fork"), lambda: manager.pin(first)):
        storage.fail = "append"
        with pytest.raises(StorageError):
            call()
    assert manager.latest("fork") is None


def test_marks_from_outside_do_not_mind_that_the_run_goes_on(open_manager: Open) -> None:
    running, outside = open_manager(), open_manager()
    first = save(running, 1)[0]
    outside.tag(first, "good")
    save(running, 2)
    outside.tag(first, "better")
    outside.pin(first)
    save(running, 1)
    assert set(outside.list_checkpoints("run")[-1].tags) == {"good", "better"}
    assert [entry.step for entry in running.list_checkpoints("run")] == [4, 3, 2, 1]
    assert all(running.verify())


def test_of_two_that_begin_a_run_at_once_the_second_conflicts(open_manager: Open) -> None:
    one, two = open_manager(), open_manager()
    first = State.new({"by": "one"}, run_id="job").at(step=1)
    one.save_checkpoint(first)
    for _ in range(2):
        with pytest.raises(ConflictError, match="was not loaded from it") as told:
            two.save_checkpoint(State.new({"by": "two"}, run_id="job").at(step=1))
        assert "resume_from_latest('job')" in told.value.hint
    one.save_checkpoint(first.set("more", 1).at(step=2))
    loaded = two.resume_from_latest("job")
    assert isinstance(loaded, State) and loaded["more"] == 1
    two.save_checkpoint(loaded.set("by", "two").at(step=3))


def test_a_state_made_anew_for_each_save_continues_the_run_of_its_manager(
    open_manager: Open,
) -> None:
    manager = open_manager()
    for step in range(1, 4):
        manager.save_checkpoint(State.new({"n": step}, run_id="job").at(step=step))
        manager.face.journal.invalidate("job")  # as after a failure
    assert [one.step for one in manager.list_checkpoints("job")] == [3, 2, 1]


def test_one_who_marks_a_run_still_cannot_save_an_old_state_of_it(open_manager: Open) -> None:
    one, other = open_manager(), open_manager()
    save(one, 1)
    mine = one.resume_from_latest("run")
    save(other, 1)
    one.tag(mine.checkpoint_id, "seen")
    for _ in range(2):
        with pytest.raises(ConflictError):
            one.save_checkpoint(mine.set("mine", True).at(step=2))
    one.save_checkpoint(one.resume_from_latest("run").set("mine", True).at(step=3))


def test_a_pin_from_outside_is_respected_by_retention_at_once(open_manager: Open) -> None:
    running, outside = open_manager(retention_count=2), open_manager()
    ids = save(running, 2)
    outside.pin(ids[0])
    save(running, 100)
    assert [entry.step for entry in running.list_checkpoints("run")] == [102, 101, 1]
    outside.unpin(ids[0])
    save(running, 1)
    assert not running.exists(ids[0])
    assert all(running.verify())


def test_a_pin_in_another_run_of_the_name_is_respected_too(open_manager: Open) -> None:
    running, outside = open_manager(retention_count=2), open_manager()
    first = running.save_checkpoint(AgentState(agent_id="agent", step_number=1))
    running.save_checkpoint(AgentState(agent_id="agent", step_number=2))
    outside.pin(first)
    for step in (3, 4, 5):
        running.save_checkpoint(AgentState(agent_id="agent", step_number=step))
    assert [entry.step for entry in running.list_checkpoints("agent")] == [5, 4, 1]


def test_what_another_tagged_is_listed_and_stays(open_manager: Open) -> None:
    one, other = open_manager(), open_manager()
    first = save(one, 1)[0]
    one.tag(first, "mine")
    assert set(other.latest("run").tags) == {"mine"}
    other.tag(first, "theirs")
    one.tag(first, "again", remove=["mine"])
    for manager in (one, other):
        assert set(manager.list_checkpoints("run")[0].tags) == {"theirs", "again"}
        assert manager.list_checkpoints(tag="mine") == []
        assert len(manager.list_checkpoints(tag="theirs")) == 1


def test_a_branch_survives_that_another_prunes_what_it_came_from(open_manager: Open) -> None:
    running, outside = open_manager(), open_manager(retention=Rules(keep_last=1))
    ids = save(running, 60, size=500)
    branch = running.load_checkpoint(ids[1])
    assert isinstance(branch, State)
    assert outside.cleanup_old_checkpoints("run") == 59
    branch = branch.append("log", "another way").at(step=3)
    checkpoint_id = running.save_checkpoint(branch)
    assert open_manager(reopen=True).load_checkpoint(checkpoint_id) == branch
    assert all(open_manager().verify())


def test_a_branch_from_what_is_kept_survives_that_another_prunes_the_rest(
    open_manager: Open,
) -> None:
    running, outside = open_manager(), open_manager(retention=Rules(keep_last=1))
    ids = save(running, 60, size=500)
    outside.pin(ids[50])
    branch = running.load_checkpoint(ids[50])
    assert isinstance(branch, State)
    assert outside.cleanup_old_checkpoints("run") == 58
    checkpoint_id = running.save_checkpoint(branch.set("other", True).at(step=52))
    assert running.latest("run").parent_checkpoint_id == ids[50]
    assert open_manager(reopen=True).load_checkpoint(checkpoint_id)["other"]
    assert all(open_manager().verify())


def test_a_branch_survives_that_its_own_manager_prunes_what_it_came_from(
    open_manager: Open,
) -> None:
    save(open_manager(), 60, size=500)
    manager = open_manager(retention=Rules(keep_last=1))
    second = next(e for e in manager.list_checkpoints("run") if e.step == 2)
    branch = manager.load_checkpoint(second.checkpoint_id)
    assert isinstance(branch, State)
    manager.cleanup_old_checkpoints("run")
    branch = branch.append("log", "another way").at(step=3)
    checkpoint_id = manager.save_checkpoint(branch)
    assert open_manager(reopen=True).load_checkpoint(checkpoint_id) == branch
    assert all(open_manager().verify())


def test_a_state_whose_checkpoint_was_deleted_is_written_again(manager: CheckpointManager) -> None:
    _, second = save(manager, 2)
    state = manager.resume_from_latest("run")
    manager.delete_checkpoint(second)
    again = manager.save_checkpoint(state)
    assert again != second
    assert manager.load_checkpoint(again) == state
    with pytest.raises(NotFoundError):
        manager.load_checkpoint(second)


def test_deleting_one_checkpoint_does_not_stop_a_branch_from_another(
    manager: CheckpointManager,
) -> None:
    ids = save(manager, 4)
    branch = manager.load_checkpoint(ids[0])
    assert isinstance(branch, State)
    manager.delete_checkpoint(ids[2])
    checkpoint_id = manager.save_checkpoint(branch.set("other", True).at(step=2))
    assert manager.latest("run").checkpoint_id == checkpoint_id
    assert manager.latest("run").parent_checkpoint_id == ids[0]


@pytest.mark.parametrize("rules", [Rules(keep_last=3), Rules(keep_last=3, group_by="all")])
def test_what_another_deleted_is_soon_not_counted_by_retention(
    open_manager: Open, monkeypatch: pytest.MonkeyPatch, rules: Rules
) -> None:
    for name in ("_LOOK_EVERY", "_LIST_AGAIN"):
        monkeypatch.setattr(f"surehold.engine.retention.live.{name}", 0)
    running, outside = open_manager(retention=rules), open_manager()
    ids = save(running, 3)
    outside.delete_checkpoint(ids[1])
    save(running, 1)
    assert [entry.step for entry in running.list_checkpoints("run")] == [4, 3, 1]


def test_threads_that_share_a_manager_do_not_overwrite_each_other(open_manager: Open) -> None:
    manager = open_manager()
    manager.save_checkpoint(State.new({"log": []}, run_id="run"))
    won: list[tuple[int, int]] = []

    def work(me: int) -> None:
        for attempt in range(12):
            state = manager.resume_from_latest("run")
            state = state.append("log", (me, attempt)).at(step=state.step + 1)
            with suppress(ConflictError):
                manager.save_checkpoint(state)
                won.append((me, attempt))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    log = open_manager(reopen=True).resume_from_latest("run")["log"]
    assert len(log) == len(won) >= 12
    assert set(log) == set(won)
    assert all(open_manager().verify())


async def test_of_two_that_save_to_one_run_in_one_commit_one_wins() -> None:
    async with StateManager(MemoryStorage()) as manager:
        await manager.save_checkpoint(State.new({"n": 0}, run_id="run"))
        states = [await manager.resume_from_latest("run") for _ in range(3)]
        saves = [
            manager.save_checkpoint(state.set("n", number).at(step=1))
            for number, state in enumerate(states)
        ]
        outcomes = await asyncio.gather(*saves, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [str, ConflictError, ConflictError]
        assert (await manager.resume_from_latest("run"))["n"] == 0


async def test_states_made_from_one_another_can_be_saved_in_one_commit() -> None:
    async with StateManager(MemoryStorage()) as manager:
        first = State.new({"n": 0}, run_id="run")
        await manager.save_checkpoint(first)
        second = first.set("n", 1).at(step=1)
        third = second.set("n", 2).at(step=2)
        ids = await asyncio.gather(*map(manager.save_checkpoint, (second, third, third)))
        assert ids[1] == ids[2]
        entries = await manager.list_checkpoints("run")
        assert [entry.step for entry in entries] == [2, 1, 0]
        assert entries[0].parent_checkpoint_id == ids[0]


def test_a_state_that_another_manager_saved_is_gone_on_from(open_manager: Open) -> None:
    one, other = open_manager(), open_manager()
    state = State.new({"n": 0}, run_id="run")
    for step in range(1, 9):
        state = state.set("n", step).at(step=step)
        (one if step % 3 else other).save_checkpoint(state)
    assert [entry.step for entry in one.list_checkpoints("run")] == list(range(8, 0, -1))
    assert all(one.verify())


def test_resuming_by_name_passes_over_runs_that_retention_emptied(open_manager: Open) -> None:
    manager = open_manager(retention_count=2)
    manager.save_checkpoint(State.new({"n": 1}, run_id="first", name="job"))
    first = manager.resume_from_latest("first")
    second = State.new({"n": 2}, run_id="second", name="job")
    manager.save_checkpoint(second.at(status="completed"))
    for step in (1, 2):
        manager.save_checkpoint(first.at(step=step))
    assert manager.list_checkpoints("second") == []
    assert manager.resume_from_latest("job").run_id == "first"


def test_counted_by_name_an_unfinished_run_keeps_its_newest_checkpoint(open_manager: Open) -> None:
    """With or without a lease: an own loop, a killed process, a script that saves itself."""
    manager = open_manager(retention_count=2)
    slow = State.new({"paid": 1}, run_id="slow", name="order")
    manager.save_checkpoint(slow.at(step=1))
    manager.save_checkpoint(slow.at(step=2))
    busy = State.new({}, run_id="busy", name="order")
    for step in range(100):
        manager.save_checkpoint(busy.set("n", step).at(step=step))
    assert [one.step for one in manager.list_checkpoints("slow")] == [2]
    assert manager.cleanup_old_checkpoints("order") == 0
    loaded = manager.resume_from_latest("slow")
    assert isinstance(loaded, State) and loaded["paid"] == 1


def test_counted_by_name_nothing_of_a_run_that_a_process_executes_is_dropped(
    open_manager: Open,
) -> None:
    manager = open_manager(retention_count=2)
    with surehold.run("slow", name="order", storage=open_manager()) as run:
        for step in range(4):
            run.checkpoint(n=step)
        busy = State.new({}, run_id="busy", name="order")
        for step in range(100):
            manager.save_checkpoint(busy.set("n", step).at(step=step))
        manager.cleanup_old_checkpoints("order")
        assert [one.step for one in manager.list_checkpoints("slow")] == [4, 3, 2, 1]
    manager.save_checkpoint(busy.set("n", 100).at(step=100))
    assert len(manager.list_checkpoints("slow")) < 4


def test_runs_of_a_name_are_cleaned_up_in_the_order_of_their_saves(open_manager: Open) -> None:
    manager = open_manager()
    for number in range(3):
        for run_id in ("a", "b"):
            state = manager.resume_from_latest(run_id) or State.new(run_id=run_id, name="job")
            manager.save_checkpoint(state.at(step=number + 1))
    keeping = open_manager(retention=Rules(keep_last=3, group_by="name"))
    assert keeping.cleanup_old_checkpoints("job") == 3
    left = [(entry.run_id, entry.step) for entry in keeping.list_checkpoints("job")]
    assert left == [("b", 3), ("a", 3), ("b", 2)]


# One engine


def test_faces_of_one_storage_share_an_engine_and_no_secret() -> None:
    with MemoryStorage() as storage:
        keyed = CheckpointManager(storage, encryption_key=KEY)
        bare = CheckpointManager(storage)
        assert keyed.face.engine is bare.face.engine is engine_of(storage)
        state = State.new({"secret": "plain"}, run_id="r")
        saved = keyed.save_checkpoint(state.at(step=1))
        assert keyed.load_checkpoint(saved)["secret"] == "plain"
        for look in (
            lambda: bare.load_checkpoint(saved),
            lambda: bare.resume_from_latest("r"),
            lambda: bare.load_checkpoint(saved, keys=["secret"]),
            lambda: bare.save_checkpoint(state.at(step=2)),
        ):
            with pytest.raises(SureholdError) as caught:
                look()
            assert "plain" not in str(caught.value)
        records = b"".join(record.body for record in storage.read("r"))
        assert b"plain" not in records
        assert keyed.resume_from_latest("r").step == 1


def test_an_engine_goes_with_its_storage() -> None:
    storage = MemoryStorage()
    known = weakref.ref(CheckpointManager(storage).face.engine)
    assert known() is not None
    del storage
    gc.collect()
    assert known() is None


def test_an_event_loop_and_threads_share_commits() -> None:
    class Slow(MemoryStorage):
        sizes: ClassVar[list[int]] = []

        def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
            self.sizes.append(len(batches))
            if len(self.sizes) == 1:
                begun.set()
                assert gate.wait(30)
            return super().append(batches)

    begun, gate = threading.Event(), threading.Event()
    with Slow() as storage, ThreadPoolExecutor(4) as pool:

        def save(number: int) -> str:
            return CheckpointManager(storage).save_checkpoint(State.new({}, run_id=f"t{number}"))

        async def saves() -> list[str]:
            async with StateManager(storage) as manager:
                names = [f"a{number}" for number in range(3)]
                return await asyncio.gather(
                    *(manager.save_checkpoint(State.new({}, run_id=name)) for name in names)
                )

        first = pool.submit(save, 0)
        assert begun.wait(30)
        others = [pool.submit(save, 1), pool.submit(asyncio.run, saves())]
        queue = engine_of(storage).commits._queue
        for _ in range(3000):
            if len(queue) == len(others):
                break
            time.sleep(0.01)
        gate.set()
        assert first.result(30) and all(one.result(30) for one in others)
        assert Slow.sizes == [1, 4]
