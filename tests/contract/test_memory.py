from __future__ import annotations

from pathlib import Path

from surehold.storage.base import Storage
from surehold.storage.memory.storage import MemoryStorage
from surehold.testing import StorageContract


class TestMemory(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return MemoryStorage()
