from __future__ import annotations

from pathlib import Path

from surehold.storage.base import Storage
from surehold.storage.files.storage import FilesystemStorage
from surehold.testing import StorageContract
from surehold.testing.contract.appending import AppendPromises
from surehold.testing.contract.deleting import DeletePromises
from surehold.testing.contract.repairing import RepairPromises


class TestPlainFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory)


class TestGzipFiles(AppendPromises, DeletePromises, RepairPromises):
    """What depends on how a record is written; the rest is as with the other codec."""

    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory, compress="gzip")


class TestZstdFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory, compress="zstd")
