from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.media import FULL

from surehold import CheckpointManager, FilesystemStorage, MemoryStorage, SQLiteStorage, Storage

KEY = "6b" * 32

MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db", compress=False),
    "sqlite-zstd": lambda path: SQLiteStorage(path / "runs.db", compress="zstd"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-gzip": lambda path: FilesystemStorage(path / "runs", compress=True),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
}

EVERY = (*MEDIA, "sqlite-encrypted", "file-encrypted")
PAIRWISE = ("memory", "sqlite", "file", "sqlite-zstd-encrypted", "file-gzip-encrypted")
"""Every storage with every other kind of record: the contract holds each storage to all of them."""


@pytest.fixture(params=EVERY if FULL else PAIRWISE)
def open_manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Opens managers on one medium: each call with `again` reopens what the others wrote."""
    medium = request.param.removesuffix("-encrypted")
    encrypted = request.param.endswith("-encrypted")
    opened: list[CheckpointManager] = []
    storages: list[Storage] = []

    def open_one(*, reopen: bool = False, **options: object) -> CheckpointManager:
        if not storages or (reopen and medium != "memory"):
            if storages:
                storages[-1].close()
            storages.append(MEDIA[medium](tmp_path))
        if encrypted:
            options.setdefault("encryption_key", KEY)
        manager = CheckpointManager(storages[-1], **options)  # type: ignore[arg-type]
        opened.append(manager)
        return manager

    yield open_one
    for manager in opened:
        manager.close()
    for storage in storages:
        storage.close()


@pytest.fixture
def manager(open_manager: Callable[..., CheckpointManager]) -> CheckpointManager:
    return open_manager()
