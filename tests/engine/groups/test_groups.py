"""Groups: one checkpoint of all members, or none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agents.agent.test_agent_children import Family
from tests.builders.agents import manager_in
from tests.builders.fleets import manager as directed
from tests.builders.fleets import team
from tests.crash.media import KEY, open_medium

import surehold
from surehold import (
    AgentState,
    AsyncCheckpointManager,
    CheckpointManager,
    Fleet,
    Group,
    MemoryStorage,
    Rules,
    State,
)
from surehold.engine.retention import bulk
from surehold.errors import ConflictError, CorruptError, NotFoundError, UsageError
from surehold.storage.base import Batch, Leasing, RunQuery, Storage, this_process

MEDIA = ("memory", "sqlite", "file", "resilient")


@pytest.fixture(params=MEDIA)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with open_one(request.param, tmp_path) as opened:
        yield opened


def open_one(medium: str, directory: Path) -> Storage:
    if medium == "memory":
        return MemoryStorage()
    if medium == "resilient":
        return surehold.open_storage(f"sqlite:///{directory}/runs.db?redundancy=1")
    return open_medium(medium, directory)


@pytest.fixture
def manager(storage: Storage) -> CheckpointManager:
    return CheckpointManager(storage)


def save(manager: CheckpointManager, run_id: str, step: int, **place: Any) -> State:
    state = manager.resume_from_latest(run_id) or State.new({}, run_id=run_id, name="agent")
    state = state.set("n", step).at(step=step, **place)
    manager.save_checkpoint(state)
    return state


def steps(states: dict[str, Any]) -> dict[str, int]:
    return {run_id: state.step for run_id, state in states.items()}


def test_a_checkpoint_of_a_group_is_restored_as_a_whole(manager: CheckpointManager) -> None:
    for run_id in ("a", "b"):
        save(manager, run_id, 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    first = crew.checkpoint()
    save(manager, "a", 2)
    second = crew.checkpoint()
    save(manager, "b", 5)
    assert [one.number for one in crew.checkpoints()] == [2, 1]
    assert steps(crew.restore()) == {"a": 2, "b": 1}
    assert steps(crew.restore(first.id)) == {"a": 1, "b": 1}
    assert crew.latest() == second
    assert steps(surehold.group("crew", storage=manager).restore()) == {"a": 2, "b": 1}


def test_states_are_saved_with_it_in_one_commit(manager: CheckpointManager) -> None:
    save(manager, "a", 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    a = manager.resume_from_latest("a").set("n", 2).at(step=2)
    agent = AgentState(agent_id="writer", run_id="b", step_number=4)
    taken = crew.checkpoint([a, agent])
    assert {one.run_id: one.step for one in taken.members} == {"a": 2, "b": 4}
    assert agent.checkpoint_id == taken.members[1].checkpoint_id
    restored = crew.restore(taken.id)
    assert restored["a"]["n"] == 2
    assert restored["b"].step_number == 4
    agent.step_number = 5
    manager.save_checkpoint(agent)
    assert manager.resume_from_latest("b").step_number == 5
    assert all(manager.verify())


def test_if_one_member_cannot_be_saved_none_is(storage: Storage) -> None:
    manager, other = CheckpointManager(storage), CheckpointManager(storage)
    a, b = save(manager, "a", 1), save(manager, "b", 1)
    save(other, "b", 9)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    with pytest.raises(ConflictError):
        crew.checkpoint([a.set("n", 2).at(step=2), b.set("n", 2).at(step=2)])
    assert crew.checkpoints() == []
    fresh = CheckpointManager(storage)
    assert fresh.resume_from_latest("a").step == 1
    assert fresh.resume_from_latest("b").step == 9
    assert surehold.group("crew", ["a", "b"], storage=fresh).checkpoint().number == 1


class Failing:
    """Fails at the append of that number."""

    def __init__(self, storage: Storage, number: int) -> None:
        self.storage, self.left = storage, number
        for name in ("append", "append_all"):
            if hasattr(storage, name):
                setattr(storage, name, self.counted(getattr(storage, name)))

    def counted(self, call: Any) -> Any:
        def append(batches: list[Batch]) -> Any:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return call(batches)

        return append


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_what_is_half_taken_is_taken_back(medium: str, number: int, tmp_path: Path) -> None:
    with open_one(medium, tmp_path) as storage:
        manager = CheckpointManager(storage)
        states = [save(manager, run_id, 1) for run_id in ("a", "b")]
        crew = surehold.group("crew", ["a", "b"], storage=manager)
        Failing(storage, number)
        try:
            crew.checkpoint([state.set("n", 2).at(step=2) for state in states])
            done = True
        except KeyboardInterrupt:
            done = False
    with open_one(medium, tmp_path) as storage:
        manager = CheckpointManager(storage)
        crew = surehold.group("crew", ["a", "b"], storage=manager)
        assert len(crew.checkpoints()) == done
        expected = {"a": 2, "b": 2} if done else {"a": 1, "b": 1}
        assert {run: manager.resume_from_latest(run).step for run in "ab"} == expected
        assert steps_of(crew) == expected


def test_whoever_takes_a_checkpoint_is_waited_for_and_does_not_keep_others_from_looking(
    tmp_path: Path,
) -> None:
    with open_one("file", tmp_path) as storage:
        states = [save(CheckpointManager(storage), run_id, 1) for run_id in ("a", "b")]
        crew = surehold.group("crew", ["a", "b"], storage=storage)
        Failing(storage, 3)
        with pytest.raises(KeyboardInterrupt):
            crew.checkpoint([state.set("n", 2).at(step=2) for state in states])
    with open_one("file", tmp_path) as storage:
        assert isinstance(storage, Leasing)
        lease = storage.take_lease("group-crew", this_process(), now=time.time(), ttl=60)
        crew = surehold.group("crew", ["a", "b"], storage=storage)
        assert steps_of(crew) == {"a": 2, "b": 2}
        release = threading.Timer(0.1, storage.release_lease, [lease])
        release.start()
        assert {one.step for one in crew.checkpoint().members} == {1}
        release.join()


def test_a_note_that_another_process_appended_is_no_conflict(storage: Storage) -> None:
    manager = CheckpointManager(storage)
    states = [save(manager, run_id, 1) for run_id in ("a", "b")]
    CheckpointManager(storage).tag(states[0].checkpoint_id, "good")
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    crew.checkpoint([state.set("n", 2).at(step=2) for state in states])
    assert steps(crew.restore()) == {"a": 2, "b": 2}


def test_the_steps_are_those_of_the_checkpoints_that_were_taken(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = CheckpointManager(storage), CheckpointManager(storage)
    save(manager, "a", 1)
    crew = surehold.group("crew", ["a"], storage=manager)
    look, later = crew._newest, [5]

    def look_then_save(run_id: str) -> Any:
        found = look(run_id)
        while later:
            save(other, "a", later.pop())
        return found

    monkeypatch.setattr(crew, "_newest", look_then_save)
    (member,) = crew.checkpoint().members
    assert member.step == 5
    assert steps(crew.restore()) == {"a": 5}


def steps_of(crew: Group) -> dict[str, int | None]:
    return {one.run_id: one.step for one in crew.status()}


def test_a_member_that_is_missing_or_behind_is_named(manager: CheckpointManager) -> None:
    save(manager, "a", 7)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    with pytest.raises(NotFoundError, match="'b'"):
        crew.checkpoint()
    save(manager, "b", 3)
    with pytest.raises(ConflictError, match="'b' did not reach step 5"):
        crew.checkpoint(at_step=5)
    assert crew.checkpoints() == []
    crew.checkpoint()
    save(manager, "a", 8)
    assert [(one.run_id, one.status) for one in crew.status()] == [("a", "ahead"), ("b", "current")]
    newest = manager.latest("b")
    assert newest is not None
    manager.delete_run("b")
    assert [(one.run_id, one.status) for one in crew.status()] == [("a", "ahead"), ("b", "missing")]
    with pytest.raises(NotFoundError, match="'b'"):
        crew.restore()
    save(manager, "b", 1)
    assert crew.status()[1].status == "behind"


def test_retention_of_the_members_keeps_what_the_group_needs(storage: Storage) -> None:
    manager = CheckpointManager(storage, retention=Rules(keep_last=1))
    for run_id in ("a", "b"):
        save(manager, run_id, 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager.storage)
    first = crew.checkpoint()
    for step in range(2, 6):
        save(manager, "a", step)
    second = crew.checkpoint()
    save(manager, "a", 6)
    assert steps(crew.restore(first.id)) == {"a": 1, "b": 1}
    crew.pin(first.id)
    assert crew.prune(keep=1) == []
    crew.unpin(first.id)
    assert [one.id for one in crew.prune(keep=1)] == [first.id]
    save(manager, "a", 7)
    assert [e.step for e in manager.list_checkpoints("a")] == [7, 5]
    assert steps(crew.restore()) == {"a": 5, "b": 1}
    assert crew.latest() == second


@pytest.mark.parametrize("counted", ["run", "name", "all"])
def test_no_rule_drops_a_checkpoint_of_a_group(storage: Storage, counted: str) -> None:
    rules = Rules(keep_last=1, group_by=counted)
    manager = CheckpointManager(storage, retention=rules)
    save(manager, "a", 1)
    groups = [surehold.group(name, ["a"], storage=storage) for name in ("crew", "others")]
    for step in (2, 3):
        for one in groups:
            one.checkpoint()
        save(manager, "a", step)
    runs = list(storage.runs(RunQuery()))
    now = datetime.now(UTC)
    plan = bulk.plan_forget(manager.reader, manager.retention, runs, rules, now, UTC)
    assert {one.reasons for one in plan if one.header.kind == "group"} == {("group",)}
    assert [*bulk.forget(manager.reader, manager.retention, plan)] == []
    assert [[steps(one.restore(c.id)) for c in one.checkpoints()] for one in groups] == [
        [{"a": 2}, {"a": 1}],
        [{"a": 2}, {"a": 1}],
    ]
    for one in groups:
        one.prune(keep=1)
    save(manager, "a", 4)
    assert [e.step for e in manager.list_checkpoints("a")] == [4, 2]


def test_what_someone_else_pinned_stays_pinned(manager: CheckpointManager) -> None:
    save(manager, "a", 1)
    crew = surehold.group("crew", ["a"], storage=manager)
    taken = crew.checkpoint()
    manager.pin(taken.members[0].checkpoint_id)
    crew.delete(taken.id)
    assert manager.retention.marks("a").pinned


def test_a_group_is_forked_as_a_whole(manager: CheckpointManager) -> None:
    for run_id in ("a", "b"):
        save(manager, run_id, 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    with pytest.raises(NotFoundError, match="surehold group checkpoint crew"):
        crew.fork("try")
    taken = crew.checkpoint()
    # An earlier attempt was interrupted after the first fork.
    manager.fork_from_checkpoint(taken.members[0].checkpoint_id, "a-try")
    other = crew.fork("try")
    assert steps(other.restore()) == {"a-try": 1, "b-try": 1}
    with pytest.raises(UsageError, match="already"):
        crew.fork("try")


def test_a_group_is_exported_and_imported_as_a_whole(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    for run_id in ("a", "b"):
        save(manager, run_id, 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    crew.checkpoint()
    crew.export(tmp_path / "crew.zip")
    with pytest.raises(UsageError, match="exists"):
        crew.export(tmp_path / "crew.zip")
    there = CheckpointManager("memory://")
    assert steps(surehold.import_group(tmp_path / "crew.zip", storage=there).restore()) == {
        "a": 1,
        "b": 1,
    }
    taken = CheckpointManager("memory://")
    save(taken, "b", 9)
    with pytest.raises(UsageError, match="'b'"):
        surehold.import_group(tmp_path / "crew.zip", storage=taken)
    assert taken.reader.run("a") is None
    (tmp_path / "bad.zip").write_bytes(b"PK")
    with pytest.raises(CorruptError):
        surehold.import_group(tmp_path / "bad.zip", storage=there)


def test_agents_of_several_storages_are_refused() -> None:
    one, two = MemoryStorage(), MemoryStorage()
    agents = [
        SimpleNamespace(agent_id=name, state_manager=CheckpointManager(storage))
        for name, storage in (("a", one), ("b", two))
    ]
    with pytest.raises(UsageError, match="cannot be atomic"):
        surehold.group("crew", agents)
    with pytest.raises(UsageError, match="cannot be atomic"):
        surehold.group("crew", agents[:1], storage=two)
    crew = surehold.group("crew", agents[:1])
    assert crew.manager.storage is one


def test_a_name_stands_for_its_newest_run(manager: CheckpointManager) -> None:
    save(manager, "a-1", 1)
    save(manager, "a-2", 2)
    taken = surehold.group("crew", ["agent"], storage=manager).checkpoint()
    assert [one.run_id for one in taken.members] == ["a-2"]


def test_a_group_without_members_is_refused(manager: CheckpointManager) -> None:
    with pytest.raises(UsageError, match="no members"):
        surehold.group("crew", storage=manager).checkpoint()
    with pytest.raises(UsageError, match="is not a member"):
        surehold.group("crew", [3], storage=manager)


def test_a_group_is_rewound_as_a_whole(manager: CheckpointManager) -> None:
    for run_id in ("a", "b"):
        save(manager, run_id, 1)
    crew = surehold.group("crew", ["a", "b"], storage=manager)
    first = crew.checkpoint()
    for run_id in ("a", "b"):
        save(manager, run_id, 7)
    crew.checkpoint()
    taken = crew.rewind(first.id)
    assert {one.run_id: one.step for one in taken.members} == {"a": 1, "b": 1}
    assert {run: manager.resume_from_latest(run)["n"] for run in "ab"} == {"a": 1, "b": 1}
    assert crew.latest() == taken
    assert [one.status for one in crew.status()] == ["current", "current"]
    assert [e.step for e in manager.list_checkpoints("a")] == [1, 7, 1]
    assert all(manager.verify())


async def test_a_group_on_an_async_manager_is_called_in_threads(tmp_path: Path) -> None:
    async with AsyncCheckpointManager(f"sqlite:///{tmp_path}/runs.db", encryption_key=KEY) as there:
        for run_id in ("a", "b"):
            await there.save_checkpoint(State.new({"n": 1}, run_id=run_id).at(step=1))
        with Group("crew", ["a", "b"], storage=there) as crew:
            first = await asyncio.to_thread(crew.checkpoint)
            state = await there.resume_from_latest("a")
            await asyncio.to_thread(crew.checkpoint, [state.set("n", 2).at(step=2)])
            assert steps(await asyncio.to_thread(crew.restore)) == {"a": 2, "b": 1}
            await asyncio.to_thread(crew.rewind, first.id)
            assert [one.status for one in crew.status()] == ["current", "current"]
            other = await asyncio.to_thread(crew.fork, "try")
            assert steps(await asyncio.to_thread(other.restore)) == {"a-try": 1, "b-try": 1}
        assert (await there.resume_from_latest("a"))["n"] == 1


async def test_agents_their_sub_agents_and_fleets_are_members(tmp_path: Path) -> None:
    manager = manager_in(tmp_path)
    boss, _ = Family(tmp_path, []).build(manager)
    assert (await boss.run("find out")).status == "completed"
    async with Fleet(directed(2), team(), storage=manager.storage) as fleet:
        done = await fleet.run("go")
        members = {run.name: run.run_id for run in manager.storage.runs(RunQuery())}
        (inside,) = members.keys() - {"boss", fleet.name}
        assert "searcher" in inside
        crew = surehold.group("crew", [boss, inside, fleet])
        taken = crew.checkpoint()
        assert {one.run_id for one in taken.members} == {*members.values()}
        assert {one.run_id for one in taken.members} >= {done.run_id}
        restored = crew.restore(taken.id)
        assert restored[done.run_id]["current_round"] == 2
        assert [one.status for one in crew.status()] == ["current"] * 3
        other = crew.fork("try")
        assert {*other.restore()} == {f"{run_id}-try" for run_id in members.values()}
        with pytest.raises(UsageError, match="repeat calls"):
            crew.rewind(taken.id)


def test_members_of_other_processes_are_taken_as_they_saved_last(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    work = (
        "import sys, surehold\n"
        "with surehold.run(sys.argv[1], storage=sys.argv[2]) as run:\n"
        "    for n in run.each(range(3)): run.state['n'] = n\n"
        "    print('done', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", work]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([*command, run_id, address], **pipes) for run_id in ("a", "b")]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "done\n"
        with surehold.group("crew", ["a", "b"], storage=address) as crew:
            taken = crew.checkpoint()  # both are leased by a live process
            assert [one.status for one in crew.status()] == ["current", "current"]
            assert [state["n"] for state in crew.restore(taken.id).values()] == [2, 2]
    finally:
        ended = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], ended
    with CheckpointManager(address) as manager:
        assert all(manager.verify())
        assert [manager.resume_from_latest(run_id)["n"] for run_id in ("a", "b")] == [2, 2]
