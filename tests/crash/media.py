"""The media that the proofs run on, and what may lie in their directories."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from tests.servers import (
    Azurite,
    FakeGoogle,
    Redis,
    RedisCluster,
    SeaweedFS,
    azurite,
    cosmos,
    fake_google,
    postgres,
    seaweedfs,
    valkey,
    valkey_cluster,
)

from surehold import CheckpointManager, FilesystemStorage, SQLiteStorage, Storage

__all__ = [
    "DURABLE",
    "EVERY",
    "FULL",
    "KEY",
    "PLAIN",
    "SERVERS",
    "crossed",
    "manager_on",
    "open_medium",
    "options_of",
    "some",
    "spread",
    "strays",
    "times",
]

FULL = os.environ.get("SUREHOLD_FULL") == "1"
"""Whether the whole figures are wanted. Without it every proof runs in a short form."""

T = TypeVar("T")
U = TypeVar("U")

_MOST = int(os.environ.get("SUREHOLD_MOST") or 0)


def times(short: int, full: int, variable: str = "") -> int:
    """How often something is tried; a variable of the environment, or SUREHOLD_MOST, may limit it.

    `python -m proof` sets these variables.
    """
    if not FULL:
        return short
    if told := os.environ.get(variable):
        return int(told)
    return min(full, _MOST) if _MOST else full


def some(every: Iterable[T], short: int, seed: object = 7) -> list[T]:
    """All of them, or as many as the form allows, chosen by chance."""
    found = list(every)
    count = times(short, len(found))
    return found if count >= len(found) else random.Random(str(seed)).sample(found, count)


def spread(every: Iterable[T], short: int) -> list[T]:
    """All of them, or as many as the form allows, at even distances from the first on."""
    found = list(every)
    count = times(short, len(found))
    return found[:: -(-len(found) // count)]


def crossed(many: Sequence[T], few: Sequence[U]) -> list[tuple[T, U]]:
    """All pairs; in the short form each of the many with the next of the few."""
    if FULL:
        return [(one, other) for one in many for other in few]
    return list(zip(many, cycle(few), strict=False))


KEY = "6b" * 32


def _postgres(path: Path) -> Storage:
    from surehold.storage.postgres import PostgresStorage

    return PostgresStorage(postgres().url, schema=_name_of(path), pool=2)


def _redis(server: Redis | RedisCluster, path: Path) -> Storage:
    from surehold.storage.redis import RedisStorage

    return RedisStorage(server.url, prefix=_name_of(path), pool=2)


def _objects(server: SeaweedFS | Azurite | FakeGoogle, address: str, path: Path) -> Storage:
    from surehold.storage.cloud import ObjectStorage

    os.environ.update(server.environment())
    return ObjectStorage(f"{address}/{_name_of(path)}")


def _cosmos(path: Path) -> Storage:
    from surehold.storage.cosmos import CosmosStorage

    server = cosmos()
    os.environ["AZURE_COSMOS_KEY"] = server.key
    return CosmosStorage(server.address(_name_of(path)), endpoint=server.endpoint)


def _name_of(path: Path) -> str:
    return f"crash_{hashlib.sha256(str(path).encode()).hexdigest()[:20]}"


_OPEN: dict[str, Callable[[Path], Storage]] = {
    "sqlite": lambda path: SQLiteStorage(path / "runs.db", compress=False),
    "sqlite-gzip": lambda path: SQLiteStorage(path / "runs.db", compress="gzip"),
    "sqlite-zstd": lambda path: SQLiteStorage(path / "runs.db", compress="zstd"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-gzip": lambda path: FilesystemStorage(path / "runs", compress=True),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
    "postgres": _postgres,
    "valkey": lambda path: _redis(valkey(), path),
    "valkey-cluster": lambda path: _redis(valkey_cluster(), path),
    "s3": lambda path: _objects(seaweedfs(), f"s3://{SeaweedFS.bucket}", path),
    "cosmos": _cosmos,
    "gs": lambda path: _objects(fake_google(), f"gs://{FakeGoogle.bucket}", path),
    "az": lambda path: _objects(azurite(), f"az://{Azurite.container}", path),
}

PLAIN = ("sqlite", "file", "file-gzip", "file-zstd")
"""Every medium that outlives a process, in the clear."""

DURABLE = (*PLAIN, "sqlite-zstd-encrypted", "file-encrypted")

SERVERS = ("postgres", "valkey", *(["valkey-cluster"] if FULL else []))

EVERY = tuple(
    medium + kind
    for medium in _OPEN
    if medium.startswith(("sqlite", "file"))
    for kind in ("", "-encrypted")
)
"""Every medium with every compression, in the clear and encrypted."""


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
