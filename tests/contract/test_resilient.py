from __future__ import annotations

from pathlib import Path

from surehold.storage.base import Storage
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.memory.storage import MemoryStorage
from surehold.storage.replicated.storage import ResilientStorage
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import StorageContract


class TestSQLiteWithFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return ResilientStorage(
            SQLiteStorage(directory / "runs.db"), FilesystemStorage(directory / "copy")
        )


class TestMemoryWithMemory(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return ResilientStorage(MemoryStorage(), MemoryStorage())
