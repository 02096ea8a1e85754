from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.files.storage import FilesystemStorage
from holdfast.testing import StorageContract
from holdfast.testing.contract.appending import AppendPromises
from holdfast.testing.contract.deleting import DeletePromises
from holdfast.testing.contract.repairing import RepairPromises


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
