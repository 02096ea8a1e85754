from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.files.storage import FilesystemStorage
from holdfast.storage.memory.storage import MemoryStorage
from holdfast.storage.replicated.storage import ResilientStorage
from holdfast.storage.sqlite.storage import SQLiteStorage
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
