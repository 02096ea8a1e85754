"""The ``.surehold`` file: a SQLite storage that holds one run.

So every command reads it in place: ``surehold -s sqlite:///nightly.surehold log``. Records are
stored as they were sealed, so digests and encryption are kept: an encrypted run stays encrypted,
with its wrapped key.

A file to import comes from an untrusted source: every size is compared with a limit before the
bytes are used, one record is held at a time, and SQLite is restricted (see
`surehold.storage.sqlite.untrusted`).
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from surehold.core.records import check_run_id
from surehold.engine.transfer.limits import FREE_BYTES, ImportLimits
from surehold.errors import (
    CorruptError,
    DataError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UsageError,
)
from surehold.storage.sqlite import SQLiteStorage, UntrustedRecord, UntrustedRun, open_untrusted


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the run that was written to a file."""

    run_id: str
    name: str
    records: int
    checkpoints: int
    """Visible ones."""
    bytes: int
    """Bytes of all records."""
    first: int
    last: int
    """The seqs of the oldest and the newest record."""
    head: str
    """The digest of the newest record."""
    exported_at: datetime
    content: Literal["sealed", "resealed", "redacted"] = "sealed"
    """As the records were, with another key or none, or with secrets taken out as well."""
    encrypted: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of seqs that are kept as bases only."""
    redacted: dict[str, int] = {}
    """Number of secrets of each kind that were taken out."""


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise unless a file may be written at *path*."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="give the name of a file", path=str(path))
    if not overwrite and os.path.lexists(path):
        raise _is_there(path)


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[SQLiteStorage]:
    """Give a storage to fill, which becomes the file at *path*; see `whole_file`."""
    with whole_file(path, overwrite=overwrite) as temporary, SQLiteStorage(temporary) as storage:
        yield storage


@contextmanager
def whole_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary path to write to, which becomes the file at *path*.

    The file is complete, durable and readable by its owner only on leaving, or not there.
    """
    check_free(path, overwrite=overwrite)
    prefix = f".{path.name[:100]}."
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as directory:
            temporary = Path(directory, "file")
            yield temporary
            temporary.chmod(0o600)
            _sync(temporary)
            _name(temporary, path, overwrite)
        _sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name(temporary: Path, path: Path, overwrite: bool) -> None:
    """Give a complete file its name; without *overwrite* only if no other file has it."""
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # Some file systems have no links.
        check_free(path, overwrite=False)
        os.replace(temporary, path)


def _is_there(path: Path) -> UsageError:
    hint = "give another name, or overwrite=True"
    return UsageError(f"{path} exists already", hint=hint, path=str(path))


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error for a file that could not be written."""
    message = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(message, path=str(path))
    hint = "check the path, and the rights of this user"
    if error.errno == errno.ENOENT:
        hint = f"make its directory first: mkdir -p {path.parent}"
    return StorageError(message, hint=hint, path=str(path))


@contextmanager
def open_file(path: Path, limits: ImportLimits) -> Iterator[ExportedRun]:
    """Open the run file at *path*; refuse anything that is not a complete one."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", path=str(path)) from None
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", path=str(path)
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise _refused(path, "is a symbolic link", "give the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise _refused(path, "is not a regular file", "give a file that export_run wrote")
    if found.st_size > limits.total_bytes:
        raise _too_much(path, limits, f"is {found.st_size:,} bytes long, more than", "total_bytes")
    with open_untrusted(path, longest=limits.record_bytes) as run:
        yield ExportedRun(path, run, found.st_size, limits)


class ExportedRun:
    """An exported run, read with limits."""

    def __init__(self, path: Path, run: UntrustedRun, size: int, limits: ImportLimits) -> None:
        self.path = path
        self.limits = limits
        self.run = run
        self._size = size
        try:
            check_run_id(run.run_id)
        except UsageError as error:
            raise self.refused(f"holds a run with a wrong id: {error.message}") from None

    def records(self) -> Iterator[UntrustedRecord]:
        """Yield the records in order, holding one at a time."""
        limits = self.limits
        count = total = 0
        try:
            for record in self.run.records():
                size = len(record.text) + len(record.body)
                count += 1
                total += size
                if size > limits.record_bytes:
                    raise self.too_much(
                        f"has a record of {size:,} bytes, more than", "record_bytes"
                    )
                if count > limits.records:
                    raise self.too_much("holds more records than", "records")
                if total > self._size:  # pages that are used more than once
                    raise self.refused("has records of more bytes than it has itself")
                yield record
        except CorruptError as error:
            if not error.facts.get("too_long"):
                raise
            raise self.too_much("has a record of more bytes than", "record_bytes") from error

    def check_ratio(self, packed: int, unpacked: int) -> None:
        """Raise if *packed* bytes grow more than the limits allow."""
        if unpacked > max(FREE_BYTES, packed * self.limits.ratio):
            times = unpacked // max(packed, 1)
            raise self.too_much(f"unpacks to {times:,} times its size, more than", "ratio")

    def refused(self, what: str, hint: str = "") -> CorruptError:
        """Return the error for something that no export holds."""
        return _refused(self.path, what, hint)

    def too_much(self, what: str, limit: str) -> DataError:
        """Return the error for something beyond a limit."""
        return _too_much(self.path, self.limits, what, limit)


def _too_much(path: Path, limits: ImportLimits, what: str, limit: str) -> DataError:
    return DataError(
        f"{path} {what} the {getattr(limits, limit):,} allowed",
        hint=f"if you trust it, give limits=ImportLimits({limit}=...), or: surehold import"
        f" --trust {path.name}",
        path=str(path),
        limit=limit,
    )


def _refused(path: Path, what: str, hint: str = "") -> CorruptError:
    hint = hint or "get the file again from where it came from"
    return CorruptError(f"{path} {what}", hint=hint, path=str(path))
