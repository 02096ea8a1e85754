"""The media that the proofs run on, and what may lie in their directories."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import CheckpointManager, FilesystemStorage, SQLiteStorage, Storage

__all__ = ["DURABLE", "FULL", "KEY", "PLAIN", "manager_on", "open_medium", "options_of", "strays"]

FULL = os.environ.get("HOLDFAST_FULL") == "1"
"""Whether the whole figures are wanted. Without it every proof runs in a short form."""

KEY = "6b" * 32

_OPEN: dict[str, Callable[[Path], Storage]] = {
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "sqlite-zstd": lambda path: SQLiteStorage(path / "runs.db", compress="zstd"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-gzip": lambda path: FilesystemStorage(path / "runs", compress=True),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
}

PLAIN = ("sqlite", "file", "file-gzip", "file-zstd")
"""Every medium that outlives a process, in the clear."""

DURABLE = (*PLAIN, "sqlite-zstd-encrypted", "file-encrypted")


def open_medium(medium: str, directory: Path) -> Storage:
    """The storage called *medium* in *directory*."""
    return _OPEN[medium.removesuffix("-encrypted")](directory)


def options_of(medium: str) -> dict[str, Any]:
    """What a manager on *medium* is given beside its storage."""
    return {"encryption_key": KEY} if medium.endswith("-encrypted") else {}


def manager_on(storage: Storage, medium: str, **options: Any) -> CheckpointManager:
    """A manager on a storage that `open_medium` gave."""
    return CheckpointManager(storage, **options_of(medium), **options)


_RUN = r"(=[0-9a-f]{40}|[a-z0-9][a-z0-9_-]{0,99})"
_KNOWN = [
    re.compile(pattern)
    for pattern in (
        r"runs\.db",
        r"\.gitignore",
        r"runs/\.gitignore",
        r"runs/\.locks/(new|[0-9a-f]{2})",
        rf"runs/\.heads/{_RUN}",
        rf"runs/\.leases/{_RUN}\.json",
        rf"runs/(_|{_RUN})/\d{{8}}T\d{{6}}\.\d{{9}}Z-{_RUN}(\.\d+)?\.jsonl(\.gz|\.zst)?",
    )
]


def strays(directory: Path) -> list[str]:
    """The files under *directory* that a closed storage should not have left there."""
    files = [path for path in directory.rglob("*") if not path.is_dir()]
    names = sorted(path.relative_to(directory).as_posix() for path in files)
    return [name for name in names if not any(known.fullmatch(name) for known in _KNOWN)]
