"""Hooks, keys and rules that code names for its runs, where something else executes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.executors import private_jobs

from surehold import CheckpointManager, SQLiteStorage
from surehold.__main__ import main
from surehold.agents.agent.resumable import AgentRuns
from surehold.engine.hooks import redacting_hooks
from surehold.executors import Worker, cancel, drive, served_by

HERE = "tests.executors.private_jobs"
SECRET = private_jobs.SECRET.encode()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SQLiteStorage]:
    with SQLiteStorage(tmp_path / "runs.db", compress=False) as storage:
        yield storage


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("runs.db*"))


async def start(door: str, storage: SQLiteStorage) -> None:
    if door == "workflow":
        private_jobs.redacted.start(run_id=door, storage=storage)
    elif door == "graph":
        graph = private_jobs.graph.over(private_jobs.graph.manager_on(storage))
        await graph.start({}, run_id=door, entry_point=f"{HERE}:graph")
    else:
        made = AgentRuns(private_jobs.agent)
        made.over(made.manager_on(storage))
        await private_jobs.agent.start("log in", run_id=door, entry_point=f"{HERE}:agent")


@pytest.mark.parametrize("door", ["workflow", "graph", "agent"])
async def test_a_worker_redacts_what_the_code_redacts(
    storage: SQLiteStorage, tmp_path: Path, door: str
) -> None:
    await start(door, storage)
    driven = await asyncio.to_thread(drive, door, storage=storage)
    assert driven.outcome == "completed"
    assert b"[redacted:password]" in stored(tmp_path)
    assert SECRET not in stored(tmp_path)


def test_a_worker_uses_the_key_that_the_code_names(storage: SQLiteStorage, tmp_path: Path) -> None:
    with CheckpointManager(storage, encryption_key=private_jobs.KEY) as manager:
        handle = private_jobs.encrypted.start("!", run_id="a", storage=manager)
        Worker(storage, served_by([f"{HERE}:encrypted"])).run(until_idle=True)
        assert handle.result(timeout=0).value == private_jobs.SECRET + "!"
    assert SECRET not in stored(tmp_path)


def test_an_encrypted_run_that_was_steered_without_its_key_can_be_moved(
    storage: SQLiteStorage, tmp_path: Path
) -> None:
    with CheckpointManager(storage, encryption_key=private_jobs.KEY) as manager:
        private_jobs.encrypted.start("!", run_id="a", storage=manager)
        cancel("a", storage=storage)
        Worker(storage, served_by([f"{HERE}:encrypted"])).run(until_idle=True)
        manager.export_run("a", tmp_path / "a.surehold")
        manager.import_run(tmp_path / "a.surehold", "b")
        assert manager.verify("b")[0].problems == ()
    assert drive("b", storage=storage, entry_point=f"{HERE}:encrypted").outcome == "cancelled"


def test_a_schedule_uses_the_key_that_its_workflow_names(
    storage: SQLiteStorage, tmp_path: Path
) -> None:
    once, later = private_jobs.each_minute, datetime.now(UTC) + timedelta(minutes=2)
    with CheckpointManager(storage) as manager:
        assert once.fire(manager) == []
        (run_id,) = once.fire(manager, now=later)
    assert drive(run_id, storage=storage, entry_point=f"{HERE}:encrypted").outcome == "completed"
    assert SECRET not in stored(tmp_path)


def test_hooks_of_a_worker_are_for_code_without_hooks(
    storage: SQLiteStorage, tmp_path: Path
) -> None:
    private_jobs.plain.start(run_id="a", storage=storage)
    served = served_by([f"{HERE}:plain"])
    Worker(storage, served, hook_manager=redacting_hooks()).run(until_idle=True)
    assert SECRET not in stored(tmp_path)


def test_the_command_redacts_what_it_executes(
    storage: SQLiteStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "surehold.toml").write_text('storage = "sqlite:///runs.db"\nredact = true\n')
    for run_id in ("resumed", "worked"):
        private_jobs.plain.start(run_id=run_id, storage=storage)
    assert main(["resume", "resumed", "--entry", f"{HERE}:plain"]) == 0
    assert main(["worker", f"{HERE}:plain", "--until-idle"]) == 0
    assert SECRET not in stored(tmp_path)
