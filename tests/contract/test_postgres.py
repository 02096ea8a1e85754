from __future__ import annotations

import hashlib
from pathlib import Path

import psycopg
from tests.servers import postgres

from surehold.storage.base import Storage
from surehold.storage.postgres import PostgresStorage
from surehold.testing import StorageContract


def schema_of(directory: Path) -> str:
    return f"t{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"


class TestPostgres(StorageContract):
    def open(self, directory: Path) -> Storage:
        schema = schema_of(directory)
        return PostgresStorage(postgres().url, schema=schema, pool=3, lease_clock="caller")

    def clean(self, directory: Path) -> None:
        with psycopg.connect(postgres().url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {schema_of(directory)} CASCADE")
        super().clean(directory)
