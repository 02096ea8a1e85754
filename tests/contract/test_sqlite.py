from __future__ import annotations

from pathlib import Path

from surehold.storage.base import Storage
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import StorageContract


class TestSQLite(StorageContract):
    def open(self, directory: Path) -> Storage:
        return SQLiteStorage(directory / "runs.db")
