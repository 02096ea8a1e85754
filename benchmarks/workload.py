"""The messages that every benchmark saves, bare commits to compare with, and timers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import apsw
import msgspec

from benchmarks.prose import prose

__all__ = [
    "BareCommits",
    "Times",
    "content_of",
    "files_size",
    "fsync_time",
    "message",
    "settings_of",
    "text_of",
]

MESSAGE = 1024
"""Bytes of a message as JSON."""

_encode = msgspec.json.encode


def message(number: int) -> dict[str, Any]:
    """A flat message of 1 KB; each number gives a different one."""
    made = {"role": ("user", "assistant")[number % 2], "number": number, "content": ""}
    made["content"] = prose(number, MESSAGE - len(_encode(made)))
    return made


def text_of(value: Any) -> bytes:
    """*value* as compact JSON."""
    return _encode(value)


def content_of(messages: list[dict[str, Any]]) -> int:
    """Bytes of the content to store: every message once."""
    return sum(len(_encode(one)) for one in messages)


def files_size(path: Path) -> int:
    """Bytes of the files at *path*: a directory, or a database with its log."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    beside = (path.with_name(path.name + end) for end in ("", "-wal", "-journal"))
    return sum(file.stat().st_size for file in beside if file.exists())


class Times:
    """Seconds that calls took, by name. What is compared takes turns; compare medians."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Call, and record the time it took."""
        started = time.perf_counter()
        result = call()
        self.taken.setdefault(name, []).append(time.perf_counter() - started)
        return result

    def median(self, name: str) -> float:
        return median(self.taken[name])

    def ratio(self, name: str, to: str) -> float:
        """Median of one divided by the median of the other."""
        return self.median(name) / self.median(to)


class BareCommits:
    """The smallest durable SQLite write: one row per commit, with a storage's settings.

    Same library, page size, log and syncs; the table holds only the bytes.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._db = apsw.Connection(str(path))
        for name in ("page_size", "auto_vacuum", "journal_mode"):
            self._db.pragma(name, settings[name])
        for name, value in settings.items():
            self._db.pragma(name, value)
        self._db.execute("CREATE TABLE bare(number INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def settings(self) -> dict[str, Any]:
        return {name: self._db.pragma(name) for name in _SETTINGS}

    def commit(self, body: bytes) -> None:
        self._db.execute("INSERT INTO bare(body) VALUES (?)", (body,))

    def close(self) -> None:
        self._db.close()


_SETTINGS = (
    "page_size",
    "auto_vacuum",
    "journal_mode",
    "synchronous",
    "cache_size",
    "wal_autocheckpoint",
    "journal_size_limit",
    "temp_store",
    "cell_size_check",
)


def settings_of(storage: Any) -> dict[str, Any]:
    """Read the settings under which a `SQLiteStorage` writes."""
    with storage._pool.maintaining() as db:
        return {name: db.pragma(name) for name in _SETTINGS}


def fsync_time(directory: Path, count: int = 50) -> float:
    """Median seconds of one fsync here, each after writing 4 KiB."""
    times = Times()
    path = directory / "fsync"
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            times.time("fsync", lambda: os.fsync(file.fileno()))
    path.unlink()
    return times.median("fsync")
