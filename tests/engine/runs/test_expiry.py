"""Whole runs expire by age, status and name, and none that someone needs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.executors import jobs
from tests.fake_objects import FakeObjects
from tests.servers import postgres, valkey

import surehold
from surehold import CheckpointManager, SQLiteStorage, State
from surehold.core.policy import Expiry
from surehold.engine.leases import RunLease
from surehold.engine.runs import expire, expiry, plan_expiry, remove_run
from surehold.errors import StorageError, UsageError
from surehold.executors import Worker, served_by
from surehold.storage.base import RunQuery, Storage
from surehold.storage.registry import open_storage
from surehold.testing.journal import FakeClock, JournalWriter

OLD = datetime.now(UTC) - timedelta(days=40)


MEDIA = ["memory", "sqlite", "files", "postgres", "valkey", "objects", "resilient"]


@pytest.fixture(params=MEDIA)
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storage]:
    name = f"t{abs(hash(str(tmp_path))):x}"
    addresses = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/runs.db",
        "files": lambda: f"file:{tmp_path}/runs",
        "postgres": lambda: f"{postgres().url}&schema={name}",
        "valkey": lambda: f"{valkey().url}?prefix={name}&durability=relaxed",
        "objects": lambda: fake_store(request, monkeypatch),
        "resilient": lambda: f"resilient:sqlite:///{tmp_path}/runs.db|file:{tmp_path}/copy",
    }
    with open_storage(addresses[request.param]()) as opened:
        yield opened
        for run in [*opened.runs(RunQuery())]:
            opened.delete(run.run_id)


def fake_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    made = FakeObjects()
    request.addfinalizer(made.__exit__)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
    return "s3://bucket/runs"


def old(storage: Storage, run_id: str, status: str = "completed", name: str = "") -> None:
    """A run that was saved 40 days ago."""
    writer = JournalWriter(run_id, name=name, clock=FakeClock(OLD))
    writer.save(storage, status=status)


def ids(storage: Storage) -> set[str]:
    return {run.run_id for run in storage.runs(RunQuery())}


def test_old_runs_of_a_status_go_and_others_stay(storage: Storage) -> None:
    for number in range(3):
        old(storage, f"done-{number}", name="nightly")
    old(storage, "failed", "failed")
    CheckpointManager(storage).save_checkpoint(
        State.new({"n": 1}, run_id="young").at(status="completed")
    )
    assert expire("30d", storage=storage, dry_run=True) == ["done-2", "done-1", "done-0"]
    assert expire("50d", storage=storage) == []
    assert expire("30d", name="other", storage=storage) == []
    assert expire("30d", keep_last=2, storage=storage) == ["done-0"]
    assert expire("30d", status=("completed", "failed"), storage=storage) == [
        *("done-2", "done-1", "failed")
    ]
    assert ids(storage) == {"young"}


def test_an_expiry_rests_after_each_run_so_that_writers_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        for number in range(3):
            old(storage, f"done-{number}")
        left: list[int] = []
        monkeypatch.setattr(expiry, "_rest", lambda seconds: left.append(len(ids(storage))))
        assert len(expire("30d", storage=storage)) == 3
    assert left == [2, 1, 0]


def test_runs_that_are_held_pinned_or_of_a_group_stay(storage: Storage) -> None:
    manager = CheckpointManager(storage)
    for run_id in ("held", "pinned", "member", "gone"):
        old(storage, run_id)
    writer = JournalWriter.after(storage, "pinned", clock=FakeClock(OLD))
    writer.save(storage, frame="note", kind="pin", metadata={"target": 1, "on": True})
    crew = surehold.group("crew", ["member"], storage=manager)
    crew.checkpoint()
    soon = Expiry(older=timedelta(microseconds=1), status=("completed", "saved"))
    with RunLease(manager.face.journal, "held"):
        reasons = {one.run.run_id: one.kept for one in plan_expiry(manager, soon)}
        assert reasons["held"] == "live" and reasons["gone"] == ""
        assert reasons["pinned"] == reasons["member"] == "pin"
        assert expire("30d", storage=manager) == ["gone"]
    assert {"held", "pinned", "member"} < ids(storage)


def test_a_run_that_was_written_to_after_the_plan_stays(storage: Storage) -> None:
    old(storage, "again")
    manager = CheckpointManager(storage)
    (one,) = plan_expiry(manager, Expiry(older="30d"))
    JournalWriter.after(storage, "again").save(storage, frame="note", kind="tag")
    assert not remove_run(manager, one.run)
    assert ids(storage) == {"again"}


def test_runs_that_run_wait_or_are_due_later_stay() -> None:
    for status in ("running", "waiting", "nonsense"):
        with pytest.raises(UsageError, match="do not expire"):
            expire("30d", status=status, storage="memory://")
    for wrong in ({"older": "soon"}, {"status": "failed"}, {"older": "1d", "keep": 1}):
        with pytest.raises(UsageError):
            Expiry.from_mapping(wrong)
    with open_storage("memory://") as storage:
        jobs.doubled.start([1], run_id="later", storage=storage, delay=3600)
        jobs.doubled.start([1], run_id="now", storage=storage)
        assert expire(timedelta(microseconds=1), status="queued", storage=storage) == ["now"]
        assert storage.entry_of("now") is None  # type: ignore[attr-defined]


def test_a_worker_removes_expired_runs_a_few_at_a_time(tmp_path: Path) -> None:
    with open_storage(f"sqlite:///{tmp_path}/runs.db") as storage:
        for number in range(45):
            old(storage, f"old-{number}")
        jobs.doubled.start([1], run_id="new", storage=storage)
        told: list[int] = []

        def log(event: str, facts: dict[str, object]) -> None:
            if event == "runs.expired":
                told.append(int(str(facts["count"])))
            if told and (event == "storage.error" or sum(told) == 45):
                worker.stop()

        worker = Worker(
            storage, served_by(["tests.executors.jobs"]), log=log, expire=Expiry(older="30d")
        )
        worker.run()
        assert told == [20, 20, 5]
        assert ids(storage) == {"new"}


def test_a_medium_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_storage("memory://") as storage:
        old(storage, "a")

        def fail(run_id: str) -> int:
            raise StorageError("the disk is gone")

        monkeypatch.setattr(storage, "delete", fail)
        with pytest.raises(StorageError, match="the disk is gone"):
            expire("30d", storage=storage)
        lease = storage.lease_of("a")  # type: ignore[attr-defined]
        assert lease.owner is None
