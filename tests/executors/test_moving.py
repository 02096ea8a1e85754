"""Runs that are moved to another version of their code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.executors import versions

from surehold import CheckpointManager, SQLiteStorage, answer
from surehold.errors import UsageError
from surehold.executors import Worker, move_runs, served_by
from surehold.storage.base import RecordQuery

CODE = "tests.executors.versions:order"
OLD = f"{CODE}_1@1"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SQLiteStorage]:
    versions.CALLS.clear()
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        yield storage


def work(storage: SQLiteStorage) -> None:
    Worker(storage, served_by([versions.__name__])).run(until_idle=True)


def begun(storage: SQLiteStorage, run_id: str = "r") -> None:
    """A run of version 1 that waits after its first step."""
    versions.order_1.start(run_id=run_id, storage=storage)
    work(storage)
    assert versions.CALLS.count("book") >= 1


def moved(storage: SQLiteStorage, new: int, *, dry_run: bool = False) -> list[tuple[str, str]]:
    with CheckpointManager(storage) as manager:
        found = move_runs(OLD, f"{CODE}@{new}", manager=manager, dry_run=dry_run, by="ann")
        return [(one.run_id, one.outcome) for one in found]


def test_a_run_continues_on_the_new_version_and_repeats_no_step(storage: SQLiteStorage) -> None:
    begun(storage)
    assert moved(storage, 2, dry_run=True) == [("r", "fits")]
    entry = storage.entry_of("r")
    assert entry is not None and entry.target == OLD
    assert moved(storage, 2) == [("r", "moved")]
    assert versions.CALLS == ["book"]  # the check executed nothing
    work(storage)
    answer("r", "go", None, storage=storage)
    work(storage)
    assert versions.order.result("r", storage=storage).value == "ship"
    assert versions.CALLS == ["book", "pack", "ship"]
    notes = storage.headers(RecordQuery(run_id="r", kind="queued", notes=True))
    assert [note.metadata.get("by") for note in notes] == ["ann", None]


def test_a_run_that_does_not_fit_is_left_as_it_is(storage: SQLiteStorage) -> None:
    begun(storage)
    assert moved(storage, 3) == [("r", "unfit")]
    assert moved(storage, 3) == [("r", "unfit")]
    answer("r", "go", None, storage=storage)
    work(storage)
    assert versions.order_1.result("r", storage=storage).value == "ship"
    assert versions.CALLS == ["book", "ship"]


def test_a_run_that_has_not_begun_takes_the_new_version(storage: SQLiteStorage) -> None:
    versions.order_1.start(run_id="r", storage=storage, delay=3600)
    assert moved(storage, 3) == [("r", "moved")]
    entry = storage.entry_of("r")
    assert entry is not None
    assert (entry.target, entry.state) == (f"{CODE}@3", "waiting")


def test_a_run_that_a_worker_executes_is_left(storage: SQLiteStorage) -> None:
    versions.order_1.start(run_id="r", storage=storage)
    worker = Worker(storage, served_by([versions.__name__]))
    (claim,) = worker._ask(1)
    assert moved(storage, 2) == [("r", "held")]
    assert claim.entry.target == OLD


def test_a_version_that_is_not_there_is_named(storage: SQLiteStorage) -> None:
    with pytest.raises(UsageError, match=r"there is no .*@7"):
        moved(storage, 7)


def test_the_command_tells_what_it_moves(storage: SQLiteStorage, tmp_path: Path) -> None:
    begun(storage)
    url = f"sqlite:///{tmp_path}/runs.db"
    dry = call("migrate-runs", OLD, f"{CODE}@3", "-n", "-s", url)
    assert (dry.code, "unfit" in dry.out) == (8, True)
    done = call("migrate-runs", OLD, f"{CODE}@2", "--yes", "-s", url)
    assert (done.code, "1 moved" in done.out) == (0, True)
