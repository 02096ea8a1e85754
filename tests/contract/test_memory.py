from __future__ import annotations

from pathlib import Path

from holdfast.storage.base import Storage
from holdfast.storage.memory.storage import MemoryStorage
from holdfast.testing import StorageContract


class TestMemory(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return MemoryStorage()
