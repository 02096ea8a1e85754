from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.sqlite.storage import SQLiteStorage
from holdfast.testing import StorageContract


class TestSQLite(StorageContract):
    def open(self, directory: Path) -> Storage:
        return SQLiteStorage(directory / "runs.db")
