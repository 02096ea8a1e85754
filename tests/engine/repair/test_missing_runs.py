"""A run that was stored and is not there any more is reported, and no fresh one takes its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import apsw
import pytest
from tests.cli.conftest import call
from tests.servers import SeaweedFS, postgres, seaweedfs, valkey

import surehold
from surehold import CheckpointManager
from surehold.errors import CorruptError
from surehold.storage.base import RunQuery
from surehold.storage.sqlite.page_checksums import checked_pages

Lose = Callable[[], None]


def fill(address: str) -> None:
    for run_id in ("lost", "other"):
        with surehold.run(run_id, name="job" if run_id == "lost" else "", storage=address) as run:
            for number in run.each(range(3)):
                run.state["n"] = number


def is_reported(address: str) -> None:
    """`verify` and `status` name the run, and nothing else."""
    with CheckpointManager(address) as manager:
        assert [one.run_id for one in manager.verify() if not one] == ["lost"]
    verified = call("-s", address, "verify", "--json")
    assert verified.code == 7
    runs = json.loads(verified.out)["runs"]
    assert [one["run_id"] for one in runs if one["problems"]] == ["lost"]
    told = call("-s", address, "status", "--json")
    problems = json.loads(told.out)["problems"]
    assert (told.code, [one["run_id"] for one in problems]) == (7, ["lost"])


def is_not_begun_anew(address: str) -> None:
    for _ in range(2):
        with pytest.raises(CorruptError, match="lost"), surehold.run("lost", storage=address):
            raise AssertionError("a fresh run has taken its place")
    with CheckpointManager(address) as manager, pytest.raises(CorruptError, match="lost"):
        manager.resume_from_latest("lost")


def is_noticed_by_name(address: str, caplog: pytest.LogCaptureFixture) -> None:
    """An agent, whose newest run is found by its name, does not begin anew without a word."""
    with CheckpointManager(address) as manager:
        try:
            assert list(manager.storage.runs(RunQuery(name="job"))) == []
            assert "lost" in caplog.text
        except CorruptError as error:
            assert "lost" in error.message


def can_be_given_up(address: str, *, found: int) -> None:
    """After a repair nothing is reported, and the run has the records that were *found*."""
    with CheckpointManager(address) as manager:
        manager.repair()
        assert all(manager.verify())
        run = manager.reader.run("lost")
        assert (run.checkpoints if run is not None else 0) == found


@pytest.fixture
def valkey_address() -> Iterator[str]:
    prefix = f"missing_{uuid4().hex[:12]}"
    yield f"{valkey().url}?prefix={prefix}&pool=2"
    valkey().drop(prefix)


def test_files_that_are_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"file:{tmp_path}/runs"
    fill(address)
    for path in tmp_path.glob("runs/*/*-lost*.jsonl"):
        path.unlink()
    is_reported(address)
    assert "no run of" not in caplog.text, "the log names a run that was not asked for"
    is_not_begun_anew(address)
    is_noticed_by_name(address, caplog)
    can_be_given_up(address, found=0)


@pytest.mark.parametrize("parts", [["head"], ["headers", "bodies", "meta"], None])
def test_keys_that_are_evicted(
    parts: list[str] | None, valkey_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    fill(valkey_address)
    prefix = valkey_address.partition("prefix=")[2].partition("&")[0]
    with redis.Redis(unix_socket_path=valkey().socket, protocol=2) as server:
        run = f"{prefix}:run:{{lost}}:"
        keys = [run + part for part in parts] if parts else server.keys(f"{run}*")
        assert server.delete(*keys) == len(keys)
    is_reported(valkey_address)
    is_not_begun_anew(valkey_address)
    is_noticed_by_name(valkey_address, caplog)
    can_be_given_up(valkey_address, found=5 if parts == ["head"] else 0)


def test_objects_that_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    address = f"s3://{SeaweedFS.bucket}/{uuid4().hex[:16]}"
    fill(address)
    with surehold.open_storage(address) as storage:
        bucket = storage._bucket
        bucket.delete([one.key for part in ("log/lost", "data/lost") for one in bucket.each(part)])
    is_reported(address)
    is_not_begun_anew(address)
    can_be_given_up(address, found=0)


def test_a_row_of_sqlite_that_has_records_cannot_be_deleted(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    fill(address)
    db = apsw.Connection(f"{tmp_path}/runs.db", vfs=checked_pages())
    for sql in ("DELETE FROM runs WHERE run_id = 'lost'", "DELETE FROM runs"):
        with pytest.raises(apsw.ConstraintError, match="surehold forget RUN --whole-run"):
            db.execute(sql)
    # A copy of the table from before the run began.
    db.execute("DROP TRIGGER runs_with_records; DELETE FROM runs WHERE run_id = 'lost'")
    db.close()
    is_reported(address)
    can_be_given_up(address, found=5)


def test_records_of_sqlite_that_are_deleted(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    fill(address)
    db = apsw.Connection(f"{tmp_path}/runs.db", vfs=checked_pages())
    db.execute("DELETE FROM records WHERE run = (SELECT pk FROM runs WHERE run_id = 'lost')")
    db.close()
    is_reported(address)
    is_not_begun_anew(address)
    can_be_given_up(address, found=0)


def test_a_row_of_postgres_that_has_records_cannot_be_deleted() -> None:
    import psycopg

    schema = f"missing_{uuid4().hex[:12]}"
    address = f"{postgres().url}&schema={schema}&pool=2"
    fill(address)
    with psycopg.connect(postgres().url, autocommit=True) as db:
        gone = f"DELETE FROM {schema}.runs WHERE run_id = 'lost'"
        with pytest.raises(psycopg.errors.RaiseException, match="has records"):
            db.execute(gone)
        db.execute(f"ALTER TABLE {schema}.runs DISABLE TRIGGER keep_runs")
        db.execute(gone)
        is_reported(address)
        can_be_given_up(address, found=5)
        records = f"(SELECT ordinal FROM {schema}.runs WHERE run_id = 'lost')"
        db.execute(f"DELETE FROM {schema}.records WHERE run = {records}")
        is_reported(address)
        is_not_begun_anew(address)
        can_be_given_up(address, found=0)
        db.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("scheme", ["sqlite:///", "file:"])
def test_a_member_of_a_group(scheme: str, tmp_path: Path) -> None:
    address = f"{scheme}{tmp_path}/runs"
    fill(address)
    with surehold.group("crew", ["lost", "other"], storage=address) as crew:
        crew.checkpoint()
        crew.manager.delete_run("lost")
    is_reported(address)


def test_a_run_that_was_deleted_is_not_missing(tmp_path: Path, valkey_address: str) -> None:
    for address in (f"sqlite:///{tmp_path}/runs.db", f"file:{tmp_path}/runs", valkey_address):
        fill(address)
        with CheckpointManager(address) as manager:
            manager.delete_run("lost")
            assert all(manager.verify())
        assert call("-s", address, "status").code == 0
        with surehold.run("lost", storage=address) as run:
            assert "n" not in run.state
