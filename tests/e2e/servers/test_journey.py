"""A run that moves: begun in a file, resumed on PostgreSQL, kept in S3, read from SQLite."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.cli.conftest import call
from tests.servers import Postgres, Redis, postgres, seaweedfs, valkey, valkey_program

import surehold
from surehold import CheckpointManager, ResilientStorage, State
from surehold.errors import StorageUnavailableError
from surehold.storage.base import RecordQuery
from surehold.storage.registry import open_storage


class Crash(Exception):
    """The laptop is closed."""


def work(address: str, *, crash_after: int | None = None) -> list[int]:
    """Do six items, each once; the numbers that were done by this call."""
    done = []
    with surehold.run("journey", storage=address, name="job") as run:
        for number in run.each(range(6)):
            if number == crash_after:
                raise Crash
            done.append(run.call(lambda n: n, number))
            run.checkpoint(total=sum(done), last=number)
    return done


def history(address: str) -> tuple[list[object], list[object]]:
    """All records as they are stored, and what every checkpoint loads as."""
    with open_storage(address) as storage, CheckpointManager(storage) as manager:
        assert all(manager.verify())
        records = [(one.header, one.text, one.body) for one in storage.read("journey")]
        found = storage.headers(RecordQuery(run_id="journey"))
        states = [manager.load_checkpoint(one.id).to_dict() for one in found]
        return list(records), list(states)


def test_a_run_has_the_same_history_wherever_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    schema = f"j{uuid4().hex[:12]}"
    laptop = f"file://{tmp_path}/laptop"
    servers = [
        f"{postgres().url}&schema={schema}",
        f"s3://{seaweedfs().bucket}/{schema}",
        f"{valkey().url}?prefix={schema}",
        f"sqlite:///{tmp_path}/archive.db",
    ]
    try:
        with pytest.raises(Crash):
            work(laptop, crash_after=3)
        assert call("copy", "-s", laptop, "--to", servers[0]).code == 0
        assert work(servers[0]) == [3, 4, 5]
        for source, target in pairwise(servers):
            assert call("copy", "-s", source, "--to", target).code == 0
        first, *others = map(history, servers)
        assert len(first[1]) >= 6
        assert all(other == first for other in others)
        out = tmp_path / "journey.jsonl"
        assert call("export", "journey", "-s", servers[1], "-o", str(out)).code == 0
        imported = f"sqlite:///{tmp_path}/imported.db"
        assert call("import", str(out), "-s", imported).code == 0
        assert history(imported)[1] == first[1]
    finally:
        valkey().drop(schema)
        with psycopg.connect(postgres().url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def _sync(storage: ResilientStorage) -> None:
    """Bring all copies up to date, once a server that had failed is tried again."""
    give_up = time.monotonic() + 120
    while True:
        try:
            return storage.sync()
        except StorageUnavailableError:
            assert time.monotonic() < give_up
            time.sleep(0.1)


def test_copies_on_two_servers_continue_while_one_is_down(home: Path) -> None:
    home.chmod(0o755)
    first = Postgres(home / "postgres").start()
    second = Redis(valkey_program(), home / "valkey", "appendonly yes", "appendfsync always")
    second.start()
    addresses = [f"{first.url}&patience=0&timeout=5", f"{second.url}?patience=0"]
    both = "resilient:" + "|".join(addresses)
    state = State.new({"done": 0}, run_id="journey")
    try:
        with open_storage(both) as storage, CheckpointManager(storage) as manager:
            for number in range(1, 10):
                if number == 4:
                    first.stop()
                if number == 7:
                    first.start()
                state = state.set("done", number)
                manager.save_checkpoint(state)
            assert isinstance(storage, ResilientStorage)
            _sync(storage)
        with open_storage(both) as storage, CheckpointManager(storage) as manager:
            assert manager.resume_from_latest("journey")["done"] == 9
        ours, copy = map(history, addresses)
        assert ours == copy
        assert len(ours[1]) == 9
    finally:
        first.stop()
        second.stop()
