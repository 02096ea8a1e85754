"""The servers of a cluster, and which of them has a key."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import redis
from redis.crc import key_slot

from surehold.errors import StorageUnavailableError
from surehold.storage.shared import to_text


class Slots:
    """Clients for the primaries of a cluster, found by the hash slot of a key.

    They connect with the settings of *pool*, the pool of one of the servers.
    """

    def __init__(self, pool: redis.BlockingConnectionPool, where: str) -> None:
        self._seed = pool
        self._where = where
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, int], Any] = {}
        self._firsts: list[int] = []
        self._servers: list[tuple[int, tuple[str, int]]] = []
        self.refresh()

    def refresh(self) -> None:
        """Learn anew which server has which slots, from any server that answers."""
        failure: redis.RedisError | None = None
        for client in (redis.Redis(connection_pool=self._seed), *self._clients.values()):
            try:
                found = client.execute_command("CLUSTER SLOTS")
            except redis.RedisError as error:
                failure = error
                continue
            if found:
                self._learn(found)
                return
        raise failure or StorageUnavailableError(f"{self._where} has no slots yet")

    def client(self, key: bytes) -> Any:
        """The client for the server that has *key*."""
        slot = key_slot(key)
        with self._lock:
            last, address = self._servers[bisect_right(self._firsts, slot) - 1]
            if slot <= last:
                return self._clients[address]
        raise StorageUnavailableError(f"no server of {self._where} has slot {slot}")

    def clients(self) -> list[Any]:
        """A client for every primary."""
        with self._lock:
            return [self._clients[address] for address in {one for _, one in self._servers}]

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            for client in self._clients.values():
                client.connection_pool.disconnect()

    def _learn(self, found: Sequence[Any]) -> None:
        own = self._seed.connection_kwargs
        ranges = sorted(
            (int(first), int(last), (to_text(primary[0] or b"") or own["host"], int(primary[1])))
            for first, last, primary, *_ in found
        )
        with self._lock:
            for _, _, address in ranges:
                if address not in self._clients:
                    self._clients[address] = self._connect(*address)
            self._firsts = [first for first, _, _ in ranges]
            self._servers = [(last, address) for _, last, address in ranges]

    def _connect(self, host: str, port: int) -> Any:
        options = {**self._seed.connection_kwargs, "host": host, "port": port}
        make: Any = redis.BlockingConnectionPool
        pool = make(
            max_connections=self._seed.max_connections,
            timeout=self._seed.timeout,
            connection_class=self._seed.connection_class,
            **options,
        )
        return redis.Redis(connection_pool=pool)
