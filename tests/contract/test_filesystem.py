from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.files.storage import FilesystemStorage
from holdfast.testing import StorageContract


class TestPlainFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory)


class TestGzipFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory, compress="gzip")


class TestZstdFiles(StorageContract):
    def open(self, directory: Path) -> Storage:
        return FilesystemStorage(directory, compress="zstd")
