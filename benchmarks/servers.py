"""Storages on real servers: PostgreSQL, Valkey, and SeaweedFS as an S3 store.

They start here with their default durability, Valkey with its append-only file synced at every
write, and keep their data on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import on_objects, on_postgres, on_valkey
from benchmarks.report import Line

__all__ = ["measure"]


def measure(directory: Path) -> Iterator[Line]:
    """Measure one server after the other."""
    directory.chmod(0o755)
    for server in (on_postgres, on_valkey, on_objects):
        yield from server.measure(directory)
