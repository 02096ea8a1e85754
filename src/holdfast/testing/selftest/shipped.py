"""The storages of Holdfast against their contract: for `holdfast.testing.unit`."""

from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.files import FilesystemStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.sqlite import SQLiteStorage
from holdfast.testing import StorageContract


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
