"""The database file: made if missing, known by its marks, refused if another's."""

from __future__ import annotations

import glob
import os
from contextlib import closing, suppress
from pathlib import Path

import apsw

from surehold.errors import CorruptError, SchemaError, StorageError, UsageError
from surehold.storage.sqlite.page_checksums import PAGE, RESERVED, peek

_APPLICATION = 0x484F4C44
"""The application id in the file's header: HOLD."""
_VERSION = 4
_HEADER = 100
_MAGIC = b"SQLite format 3\0"
_UNTOUCHED = "give another path; this file was left as it is"

_SCHEMA = """
CREATE TABLE runs(
    pk INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    seq INTEGER NOT NULL,
    digest TEXT NOT NULL,
    latest INTEGER,
    checkpoints INTEGER NOT NULL,
    stored INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    saved_at TEXT NOT NULL
);
CREATE INDEX runs_by_name ON runs(name);
CREATE INDEX runs_by_status ON runs(status);
CREATE INDEX runs_to_resume ON runs(name) WHERE status <> 'completed';
CREATE TABLE records(
    ord INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    digest BLOB NOT NULL,
    header TEXT NOT NULL
);
CREATE UNIQUE INDEX records_of_run ON records(run, seq);
CREATE TABLE bodies(ord INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE marks(
    key BLOB NOT NULL, note INTEGER NOT NULL, ord INTEGER NOT NULL, PRIMARY KEY(key, note, ord)
) WITHOUT ROWID;
CREATE TABLE erased(
    run INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY(run, first)
) WITHOUT ROWID;
CREATE TABLE leases(
    run_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL, expires_at REAL NOT NULL, owner TEXT
) WITHOUT ROWID;
"""

_UPGRADES = {
    2: """
CREATE TABLE entries(
    run_id TEXT PRIMARY KEY,
    queue TEXT NOT NULL,
    target TEXT NOT NULL,
    state TEXT NOT NULL,
    priority INTEGER NOT NULL,
    key TEXT NOT NULL,
    rank REAL NOT NULL,
    due REAL,
    failures INTEGER NOT NULL,
    reason TEXT NOT NULL,
    woken INTEGER NOT NULL,
    cancelled INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX entries_ready ON entries(queue, target, priority DESC, rank) WHERE state = 'ready';
CREATE INDEX entries_of_key ON entries(queue, key, rank) WHERE state = 'ready';
CREATE INDEX entries_due ON entries(due) WHERE state = 'waiting';
CREATE INDEX entries_by_state ON entries(queue, state, key);
CREATE TABLE queues(
    name TEXT PRIMARY KEY, settings TEXT NOT NULL, starts TEXT NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
""",
    3: """
CREATE TABLE workers(
    id TEXT PRIMARY KEY, facts TEXT NOT NULL, until REAL NOT NULL
) WITHOUT ROWID;
""",
    4: """
CREATE TRIGGER IF NOT EXISTS runs_with_records BEFORE DELETE ON runs
WHEN EXISTS (SELECT 1 FROM records WHERE run = OLD.pk)
BEGIN
    SELECT RAISE(ABORT, 'the run has records: surehold forget RUN --whole-run deletes it whole');
END;
""",
}
"""Statements that came with a version."""


def make_file(path: Path) -> None:
    """See that there is a file, if only an empty one."""
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory",
            hint=f"name a file in it: sqlite:///{path / 'runs.db'}",
            path=str(path),
        )
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise StorageError(
                f"{above} is not a directory, so there can be no {path}",
                hint="choose another place, or move that file away",
                path=str(path),
            )
    if _make_directory(path.parent):
        _make(path.parent / ".gitignore", b"*\n")
    _make(path, b"")


def check_names(path: Path) -> None:
    """Refuse a file with several names, each of which would have a log of its own."""
    if (names := path.stat().st_nlink) > 1:
        # A salvage that was killed leaves its second name.
        kept = path.parent.glob(f"{glob.escape(path.name)}.damaged-*")
        if names > 1 + sum(path.samefile(one) for one in kept):
            raise StorageError(
                f"{path} is one of {names} names of a file (hard links)",
                hint="each name would have a log of its own: remove the others, or copy the file;"
                " a symbolic link is fine",
                path=str(path),
            )


def _make_directory(directory: Path) -> bool:
    """Make a directory and its parents, for this user alone; False if it exists."""
    if directory.is_dir():
        return False
    _make_directory(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(0o700)
    sync_directory(directory.parent)
    return True


def _make(path: Path, content: bytes) -> None:
    """Make a file for this user alone, unless there is one."""
    with suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, content)
        finally:
            os.close(fd)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make names in a directory durable, on systems where it can be opened for that."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_schema(writer: apsw.Connection, path: Path) -> None:
    """Make the tables, if the file is empty; refuse it, if it is not ours."""
    if _is_empty(writer):
        _create(writer)
    if writer.pragma("application_id") != _APPLICATION:
        raise _foreign(path)
    version = writer.pragma("user_version")
    if 1 <= version < _VERSION:
        _upgrade(writer)
    if version > _VERSION:
        raise _newer(path, version)


def _is_empty(writer: apsw.Connection) -> bool:
    """True if nothing was made yet, or its maker stopped after the settings."""
    if writer.pragma("page_count") == 0:
        return True
    marks = [writer.pragma(mark) for mark in ("application_id", "user_version", "schema_version")]
    return marks == [0, 0, 0] and writer.reserve_bytes("main") == RESERVED


def _create(writer: apsw.Connection) -> None:
    writer.reserve_bytes("main", RESERVED)
    writer.pragma("page_size", PAGE)
    writer.pragma("auto_vacuum", "incremental")
    writer.execute("BEGIN IMMEDIATE")
    # Another process may have been faster.
    if writer.pragma("user_version") == 0:
        writer.execute(_SCHEMA)
        for statements in _UPGRADES.values():
            writer.execute(statements)
        writer.pragma("application_id", _APPLICATION)
        writer.pragma("user_version", _VERSION)
    writer.execute("COMMIT")


def _upgrade(writer: apsw.Connection) -> None:
    writer.execute("BEGIN IMMEDIATE")
    # Another process may have been faster.
    for number in range(writer.pragma("user_version") + 1, _VERSION + 1):
        writer.execute(_UPGRADES[number])
        writer.pragma("user_version", number)
    writer.execute("COMMIT")


def refusal(path: Path, error: apsw.Error) -> CorruptError:
    """The error that says why SQLite cannot read the file."""
    header = peek(str(path), _HEADER)
    if not header.startswith(_MAGIC):
        return CorruptError(f"{path} is not a SQLite database", hint=_UNTOUCHED, path=str(path))
    if (header[20:21], header[68:72]) != (bytes([RESERVED]), _APPLICATION.to_bytes(4)):
        return _foreign(path)
    return CorruptError(
        f"{path} is damaged: {error}",
        hint="SQLiteStorage.salvage(path) brings what can be read into a new file",
        path=str(path),
    )


def check_header(path: Path, header: bytes) -> int:
    """Refuse a file by its first bytes; returns the number of pages that they tell."""
    if not header.startswith(_MAGIC):
        raise CorruptError(f"{path} is not a surehold file", hint=_UNTOUCHED, path=str(path))
    if (header[20:21], header[68:72]) != (bytes([RESERVED]), _APPLICATION.to_bytes(4)):
        raise _foreign(path)
    if (version := int.from_bytes(header[60:64])) > _VERSION:
        raise _newer(path, version)
    return int.from_bytes(header[28:32])


def is_ours(db: apsw.Connection) -> bool:
    """True if a database has the tables of runs, and nothing that is not Surehold's."""
    objects = set(db.execute(_OBJECTS).fetchall())
    with closing(apsw.Connection(":memory:")) as empty:
        for statements in (_SCHEMA, *_UPGRADES.values()):
            empty.execute(statements)
        known = set(empty.execute(_OBJECTS).fetchall())
    names = {name for _, name, _, _ in objects}
    return objects <= known and names >= {"runs", "records", "records_of_run", "bodies"}


_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


def _newer(path: Path, version: int) -> SchemaError:
    return SchemaError(
        f"{path} was written by a newer Surehold (format {version}, this one knows {_VERSION})",
        hint="update surehold",
        path=str(path),
        version=version,
    )


def _foreign(path: Path) -> CorruptError:
    return CorruptError(
        f"{path} is a SQLite database, but not one of Surehold's", hint=_UNTOUCHED, path=str(path)
    )


def use_log(writer: apsw.Connection, path: Path) -> None:
    mode = writer.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StorageError(
            f"SQLite keeps no write-ahead log beside {path} (journal_mode is {mode!r})",
            hint="the file system must offer shared memory; a network file system does not",
            path=str(path),
        )
