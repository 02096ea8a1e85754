"""The medium under test: how to open it, its claims, how to clean up."""

from __future__ import annotations

import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from surehold.core.records import Record
from surehold.storage.base import (
    Atomic,
    Leasing,
    Opening,
    RecordQuery,
    Repairable,
    RunInfo,
    RunQuery,
    Storage,
)


class Medium(ABC):
    """Opens the medium under test and says which abilities it has."""

    survives: bool = True
    """True if what was stored is there when the medium is opened anew."""
    leases: bool = True
    """True if the storage implements `Leasing`."""
    repairs: bool = True
    """True if the storage implements `Repairable`."""
    notifies: bool = True
    """False if notifications of a `Watching` storage do not arrive, as behind a pooler."""
    _directory: Path

    @abstractmethod
    def open(self, directory: Path) -> Storage:
        """Open the medium that belongs to *directory*, which exists and is empty at first.

        The same directory gives the same medium, whether an earlier storage on it is closed or
        still open, and in whichever process.
        """

    def clean(self, directory: Path) -> None:
        """Remove all that was stored in the medium of *directory*, after each test.

        A medium elsewhere, in a server say, overrides this.
        """
        shutil.rmtree(directory, ignore_errors=True)

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[Path]:
        self._directory = path = tmp_path / "medium"
        path.mkdir()
        before = set(threading.enumerate())
        yield path
        self.clean(path)
        left = [one for one in set(threading.enumerate()) - before if not one.daemon]
        assert not left, f"threads are left behind: {left}"

    @pytest.fixture
    def storage(self, directory: Path) -> Iterator[Storage]:
        with self.open(directory) as storage:
            yield storage

    def views(self, storage: Storage) -> Iterator[Storage]:
        """Every way to look at what was stored; the last comes after *storage* was closed.

        The storage itself; another one, opened beside it; and one opened when both are closed.
        """
        yield storage
        if not self.survives:
            return
        with self.open(self._directory) as beside:
            yield beside
        storage.close()
        with self.open(self._directory) as again:
            yield again

    def must_survive(self) -> None:
        """Skip the test for a medium that ends with its storage."""
        if not self.survives:
            pytest.skip("this medium ends with its storage")

    def repairable(self, storage: Storage) -> Repairable:
        """*storage* as one that can be repaired; skips the test for others."""
        if not self.repairs:
            pytest.skip("this medium cannot be repaired")
        assert isinstance(storage, Repairable)
        return storage

    def leasing(self, storage: Storage) -> Leasing:
        """*storage* as one that can lease; skips the test where it does not claim to."""
        if not self.leases:
            pytest.skip("this medium does not lease")
        assert isinstance(storage, Leasing)
        return storage

    def opening(self, storage: Storage) -> Opening:
        """*storage* as one that takes a run in one call; skips the test for another."""
        if not isinstance(storage, Opening):
            pytest.skip("this medium takes a run and looks at it in two calls")
        self.leasing(storage)
        return storage

    def atomic(self, storage: Storage) -> Atomic:
        """*storage* as one that stores several runs together; skips the test for another."""
        if not isinstance(storage, Atomic):
            pytest.skip("this medium cannot store several runs together")
        return storage


def stored(storage: Storage, run_id: str = "run") -> list[Record]:
    return list(storage.read(run_id))


def seqs(storage: Storage, run_id: str = "run") -> list[int]:
    """The seqs that are visible in a run, notes included, as they are listed."""
    return [h.seq for h in storage.headers(RecordQuery(run_id=run_id, notes=True))]


def infos(storage: Storage) -> list[RunInfo]:
    return list(storage.runs(RunQuery()))
