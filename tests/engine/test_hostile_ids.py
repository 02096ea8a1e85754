"""Ids that mean something to a file system, a database or a person: kept apart, or refused."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.media import manager_on, open_medium

import surehold
from surehold import AgentState, CheckpointManager, MemoryStorage, State, Storage
from surehold.core.records.ids import medium_name
from surehold.errors import UsageError

Open = Callable[..., CheckpointManager]

ALLOWED = [
    *("../x", "..", ".", "/", "//", "a/b", "/etc/passwd", "..\\x", "C:\\x", "~", "$HOME"),
    *("agent-1", "agent-10", "agent-1 ", " agent-1", "Agent-1", "AGENT-1", "agent_1", "agent%1"),
    *("con", "CON", "nul", "com1.txt", "-rf", "x\n", "x\r\ny", "a\tb", "*", "?", "'; DROP TABLE--"),
    *(".heads", ".locks", ".leases", ".gitignore", "_", "x.tmp", ".x.tmp", "x.jsonl", "runs.db"),
    medium_name("../x"),
    "x" * 4096,
    "../" * 1365,
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    *("агент", "\u202eagent", "🦀", "\u017f", "s", "\ufb01", "\ufeffx", "\u200b"),
    *("None", "null", "0", "00", "true", "{}"),
]
REFUSED = ["", "\0", "a\0b", "../\0", "\ud800", "x" * 65_537]

TWIN = {"", "runs", "runs.db", "runs.db-wal", "runs.db-shm", ".gitignore"}


@pytest.fixture(params=["memory", "sqlite", "file", "file-zstd"])
def open_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens managers on one medium; each call looks at it anew."""
    medium = request.param
    storages: list[Storage] = [MemoryStorage()]

    def open_one() -> CheckpointManager:
        if medium != "memory":
            storages[-1].close()
            storages.append(open_medium(medium, tmp_path))
        return manager_on(storages[-1], medium)

    yield open_one
    storages[-1].close()


def outside(directory: Path) -> list[str]:
    """What lies beside the storage's own file or directory."""
    return sorted(path.name for path in directory.iterdir() if path.name not in TWIN)


def test_run_ids_are_kept_apart_and_within_the_directory(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager()
    for number, run_id in enumerate(ALLOWED):
        state = State.new({"me": run_id}, run_id=run_id).at(step=number)
        manager.save_checkpoint(state)
        manager.save_checkpoint(state.set("again", True))
    fresh = open_manager()
    for number, run_id in enumerate(ALLOWED):
        state = fresh.resume_from_latest(run_id)
        assert (state.run_id, state["me"], state.step) == (run_id, run_id, number)
        assert {entry.run_id for entry in fresh.list_checkpoints(run_id)} == {run_id}
    assert len(fresh.list_checkpoints()) == 2 * len(ALLOWED)
    assert all(fresh.verify())
    assert outside(tmp_path) == []


def test_deleting_a_run_leaves_its_likes_alone(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    for run_id in ALLOWED:
        manager.save_checkpoint(State.new({"me": run_id}, run_id=run_id))
    left = list(ALLOWED)
    for run_id in ALLOWED[::2]:
        assert manager.delete_run(run_id) >= 1
        left.remove(run_id)
    fresh = open_manager()
    assert {entry.run_id for entry in fresh.list_checkpoints()} == set(left)
    for run_id in ALLOWED:
        found = fresh.resume_from_latest(run_id)
        assert (found is not None and found["me"] == run_id) == (run_id in left)
    assert all(fresh.verify())
    assert outside(tmp_path) == []


def test_names_are_kept_apart_and_within_the_directory(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    for name in ALLOWED:
        manager.save_checkpoint(AgentState(agent_id=name, metadata={"me": name}))
    fresh = open_manager()
    for name in ALLOWED:
        state = fresh.resume_from_latest(name)
        assert (state.agent_id, state.metadata) == (name, {"me": name})
        assert len(fresh.list_checkpoints(name)) == 1
    assert outside(tmp_path) == []


def test_forks_and_tags_take_any_id(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    first = manager.save_checkpoint(State.new({"n": 1}, run_id="source"))
    for run_id in ALLOWED:
        fork = manager.fork_from_checkpoint(first, run_id)
        manager.tag(fork.checkpoint_id or "", f"tag {run_id}")
    fresh = open_manager()
    for run_id in ALLOWED:
        assert [e.run_id for e in fresh.list_checkpoints(tag=f"tag {run_id}")] == [run_id]
    assert outside(tmp_path) == []


@pytest.mark.parametrize("bad", REFUSED, ids=lambda bad: ascii(bad[:8]))
def test_what_cannot_name_a_run_is_refused_before_anything_is_written(
    open_manager: Open, tmp_path: Path, bad: str
) -> None:
    manager = open_manager()
    first = manager.save_checkpoint(State.new({"n": 1}, run_id="run"))
    calls: list[Callable[[], object]] = [
        lambda: State.new({}, run_id=bad),
        lambda: manager.save_checkpoint(AgentState(agent_id=bad)),
        lambda: manager.save_checkpoint(AgentState(agent_id="a", run_id=bad or "\0")),
        lambda: manager.fork_from_checkpoint(first, bad),
        lambda: manager.resume_from_latest(bad),
        lambda: surehold.run(bad, storage=manager.storage),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert len(str(caught.value)) < 300
    assert len(manager.list_checkpoints()) == 1
    assert outside(tmp_path) == []


def test_a_loop_runs_under_any_id(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    for run_id in ALLOWED:
        with surehold.run(run_id, storage=manager.storage) as run:
            run.checkpoint(me=run_id)
    storage = open_manager().storage
    for run_id in ALLOWED:
        with surehold.run(run_id, storage=storage) as run:
            assert (run.completed, run.state) == (True, {"me": run_id})
    assert outside(tmp_path) == []
