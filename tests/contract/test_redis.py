from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.servers import (
    Redis,
    RedisCluster,
    redis_program,
    redis_server,
    valkey,
    valkey_cluster,
)

from holdfast.storage.base import Storage
from holdfast.storage.redis import RedisStorage
from holdfast.testing import StorageContract


class TestValkey(StorageContract):
    def server(self) -> Redis | RedisCluster:
        return valkey()

    def open(self, directory: Path) -> Storage:
        url = self.server().url
        return RedisStorage(url, prefix=_prefix(directory), pool=3, lease_clock="caller")

    def clean(self, directory: Path) -> None:
        self.server().drop(_prefix(directory))


@pytest.mark.skipif(redis_program() is None, reason="redis-server is not installed: make system")
class TestRedis(TestValkey):
    def server(self) -> Redis:
        return redis_server()


class TestCluster(TestValkey):
    def server(self) -> RedisCluster:
        return valkey_cluster()


def _prefix(directory: Path) -> str:
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:20]
