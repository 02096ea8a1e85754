"""Valkey in a cluster whose servers are killed and whose slots move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot
from tests.servers import RedisCluster, valkey_program

from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.redis import RedisStorage
from surehold.testing import JournalWriter


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """A cluster of this test alone, which may break it."""
    settings = ("appendonly yes", "appendfsync always")
    made = RedisCluster(valkey_program(), tmp_path / "cluster", *settings)
    yield made.start()
    for server in made.servers:
        server.stop()


def test_servers_may_restart_and_slots_may_move(cluster: RedisCluster) -> None:
    """Acknowledged appends stay, and writers continue by themselves."""
    stop, done, failures = threading.Event(), [0], []

    with RedisStorage(cluster.url) as storage:

        def write() -> None:
            try:
                writer = JournalWriter("run")
                while not stop.is_set():
                    assert storage.append([writer.batch()]) == [None]
                    done[0] += 1
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=write)
        thread.start()
        for server in cluster.servers:
            target = done[0] + 10
            while done[0] < target and not failures:
                time.sleep(0.01)
            server.kill()
        stop.set()
        thread.join(60)
        assert not failures
        assert len(list(storage.read("run"))) == done[0]
        assert len(list(storage.headers(RecordQuery()))) == done[0]
        _move_slot(cluster, key_slot(b"surehold:run:{moved}:"))
        writer = JournalWriter("moved")
        for _ in range(3):
            writer.save(storage)
        assert [info.run_id for info in storage.runs(RunQuery())] == ["moved", "run"]


def _move_slot(cluster: RedisCluster, slot: int) -> None:
    """Give an empty slot to the next server."""
    clients = [redis.Redis(unix_socket_path=one.socket, protocol=2) for one in cluster.servers]
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    owner = next(n for n in range(3) if slot < 16384 * (n + 1) // 3)
    taker = (owner + 1) % 3
    for n in (taker, owner):
        clients[n].execute_command("CLUSTER SETSLOT", slot, "NODE", ids[taker])
    for client in clients:
        client.close()
