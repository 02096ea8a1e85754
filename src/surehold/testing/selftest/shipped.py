"""The storages of Surehold against their contract: for `surehold.testing.unit`."""

from __future__ import annotations

from pathlib import Path

from surehold.storage.base import Storage
from surehold.storage.files import FilesystemStorage
from surehold.storage.memory import MemoryStorage
from surehold.storage.sqlite import SQLiteStorage
from surehold.testing import StorageContract


class TestMemory(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return MemoryStorage()


class TestFile(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory, compress="zstd")


class TestSqlite(StorageContract):
    def open(self, directory: Path) -> Storage:
        return SQLiteStorage(directory / "runs.db")
