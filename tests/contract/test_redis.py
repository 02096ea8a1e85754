from __future__ import annotations

import hashlib
from pathlib import Path

from tests.servers import Redis, RedisCluster, valkey

from surehold.storage.base import Storage
from surehold.storage.redis import RedisStorage
from surehold.testing import StorageContract


class TestValkey(StorageContract):
    def server(self) -> Redis | RedisCluster:
        return valkey()

    def open(self, directory: Path) -> Storage:
        url = self.server().url
        return RedisStorage(url, prefix=_prefix(directory), pool=3, lease_clock="caller")

    def clean(self, directory: Path) -> None:
        self.server().drop(_prefix(directory))


def _prefix(directory: Path) -> str:
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:20]
