from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.filesystem import FilesystemStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.resilient import ResilientStorage
from holdfast.storage.sqlite import SQLiteStorage
from holdfast.testing import StorageContract


class TestSQLiteWithFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return ResilientStorage(
            SQLiteStorage(directory / "runs.db"), FilesystemStorage(directory / "copy")
        )


class TestMemoryWithMemory(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return ResilientStorage(MemoryStorage(), MemoryStorage())
