"""Redis in a cluster: runs on several servers, indexes on one of them."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
import redis
from tests.servers import RedisCluster, valkey_cluster

from surehold.errors import StorageError
from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.redis import RedisStorage
from surehold.storage.redis.indexes import Indexes
from surehold.testing import JournalWriter


@pytest.fixture
def prefix() -> Iterator[str]:
    name = f"s{uuid4().hex[:16]}"
    yield name
    valkey_cluster().drop(name)


@pytest.fixture
def storage(prefix: str) -> Iterator[RedisStorage]:
    with RedisStorage(valkey_cluster().url, prefix=prefix) as storage:
        yield storage


def _count(cluster: RedisCluster, pattern: str) -> list[int]:
    """The number of keys that match on each server."""
    found = []
    for server in cluster.servers:
        with redis.Redis(unix_socket_path=server.socket, protocol=2) as client:
            found.append(len(list(client.scan_iter(match=pattern))))
    return found


def test_runs_are_spread_and_indexes_are_together(storage: RedisStorage, prefix: str) -> None:
    storage.append([JournalWriter(f"run-{n}").batch() for n in range(24)])
    assert all(_count(valkey_cluster(), f"{prefix}:run:*"))
    assert sorted(map(bool, _count(valkey_cluster(), f"{prefix}:index:*"))) == [False, False, True]
    assert len(list(storage.runs(RunQuery()))) == 24


def test_what_a_writer_that_died_had_stored_is_listed(
    storage: RedisStorage, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append was stored on one server, and its entries in the indexes were not made."""
    writer = JournalWriter("run", name="agent")
    writer.save(storage)
    dead = RedisStorage(valkey_cluster().url, prefix=prefix)

    def die(*_: object) -> None:
        raise StorageError("died")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="died"):
        patch.setattr(Indexes, "change", die)
        writer.save(dead, id="late", status="completed")
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="died"):
        patch.setattr(Indexes, "change", die)
        JournalWriter("new", name="agent").save(dead)
    dead.close()
    assert [(one.run_id, one.seq) for one in storage.headers(RecordQuery(name="agent"))] == [
        ("new", 1),
        ("run", 2),
        ("run", 1),
    ]
    assert [header.seq for header in storage.find("late")] == [2]
    assert {info.run_id for info in storage.runs(RunQuery(name="agent"))} == {"new", "run"}
    assert [one.run_id for one in storage.runs(RunQuery(status="completed"))] == ["run"]
    assert [one.run_id for one in storage.runs(RunQuery(not_status="completed"))] == ["new"]


def test_without_the_announcement_it_would_not_be_listed(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control of the test above."""

    def die(*_: object) -> None:
        raise StorageError("died")

    monkeypatch.setattr(Indexes, "announce", lambda *_: [])
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="died"):
        patch.setattr(Indexes, "change", die)
        JournalWriter("new").save(storage)
    assert list(storage.runs(RunQuery())) == []
    assert storage.check_medium(repair=False) != []
    storage.check_medium(repair=True)
    assert [info.run_id for info in storage.runs(RunQuery())] == ["new"]


def test_lost_indexes_are_rebuilt_from_the_runs(storage: RedisStorage, prefix: str) -> None:
    for n in range(6):
        JournalWriter(f"run-{n}", name="agent").save(storage, tags=(f"t{n}",))
    before = list(storage.headers(RecordQuery())), list(storage.runs(RunQuery()))
    for server in valkey_cluster().servers:
        server.drop(f"{prefix}:index")
    assert list(storage.runs(RunQuery())) == []
    assert len(storage.check_medium(repair=False)) == 6
    storage.check_medium(repair=True)
    assert storage.check_medium(repair=False) == []
    assert (list(storage.headers(RecordQuery())), list(storage.runs(RunQuery()))) == before
    JournalWriter("later").save(storage)
    assert next(storage.runs(RunQuery())).ordinal == 7
