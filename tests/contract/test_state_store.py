from __future__ import annotations

from pathlib import Path

from tests.shelf import Shelf

from holdfast.storage.base import Storage
from holdfast.storage.memory import StateStoreStorage
from holdfast.testing import StorageContract


class TestStateStore(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return StateStoreStorage(Shelf(directory))
