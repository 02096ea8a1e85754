from __future__ import annotations

from pathlib import Path

from tests.shelf import Shelf

from surehold.storage.base import Storage
from surehold.storage.memory import StateStoreStorage
from surehold.testing import StorageContract


class TestStateStore(StorageContract):
    survives = False

    def open(self, directory: Path) -> Storage:
        return StateStoreStorage(Shelf(directory))
