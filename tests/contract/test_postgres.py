from __future__ import annotations

import hashlib
from pathlib import Path

from tests.servers import postgres

from holdfast.storage.base import Storage
from holdfast.storage.postgres import PostgresStorage
from holdfast.testing import StorageContract


class TestPostgres(StorageContract):
    def open(self, directory: Path) -> Storage:
        schema = "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:20]
        return PostgresStorage(postgres().url, schema=schema, pool=3, lease_clock="caller")
