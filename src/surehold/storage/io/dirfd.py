"""Directories that are changed safely, and the meaning of system errors.

Everything goes through an open directory and a single name within it, symbolic links are not
followed, and what others may not see is not given to them: files are 0600, directories 0700.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from surehold.errors import StorageError, StorageFullError, StorageUnavailableError
from surehold.storage.retries import TRANSIENT, Retry, retried

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BUSY = TRANSIENT | {errno.EMFILE, errno.ENFILE}
_SOON = Retry(first_wait=0.01, jitter=0.01, deadline=None)
"""Whoever saves waits: give up after about 0.1 s."""
LOCK_SECONDS = 10.0
"""Longest wait for one holder of a lock; it needs milliseconds, unless it was stopped."""
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
"""Errors of a place where nothing may be written."""
_HINTS = {
    errno.EROFS: "the file system is read-only: mount it writable, or choose another base_dir",
    errno.EACCES: "give this user the right to read and write there, or choose another base_dir",
    errno.EPERM: "give this user the right to read and write there, or choose another base_dir",
    errno.ELOOP: "a symbolic link stands there, and none is followed: put what it points to there",
    errno.ENOTDIR: "a directory is needed there; a symbolic link to one is not followed",
    errno.EIO: "the disk or its driver failed: look into the system's log",
}


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn any `OSError` within into the `StorageError` that says what it means."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        name = error.filename if isinstance(error.filename, str | bytes) else ""
        where = path / os.fsdecode(name)
        message = f"{error.strerror or error} at {where}"
        if code in _FULL:
            raise StorageFullError(message, path=str(where), errno=code) from error
        if code in _BUSY:
            raise StorageUnavailableError(message, path=str(where), errno=code) from error
        hint = _HINTS.get(code, "")
        raise StorageError(message, hint=hint, path=str(where), errno=code) from error


def sync(fd: int) -> None:
    """Return when what was written to *fd* is on the medium."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of *data*, however little the system takes at a time."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def read_at(fd: int, offset: int, size: int) -> bytes:
    """*size* bytes, or fewer where the file ends."""
    chunks = []
    while size > 0 and (chunk := os.pread(fd, size, offset)):
        chunks.append(chunk)
        offset, size = offset + len(chunk), size - len(chunk)
    return b"".join(chunks)


class Folder:
    """An open directory. A name is one of its entries, never a path."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @contextmanager
    def folder(self, name: str, *, create: bool = False) -> Iterator[Folder]:
        """The directory *name* within this one, made if it is missing and wanted."""
        flags = _DIRECTORY | os.O_NOFOLLOW
        try:
            fd = _open(name, flags, self._fd)
        except FileNotFoundError:
            if not create:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._fd)
            os.fsync(self._fd)
            fd = _open(name, flags, self._fd)
        try:
            yield Folder(fd)
        finally:
            os.close(fd)

    @contextmanager
    def open(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        fd = _open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, self._fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def read(self, name: str) -> bytes | None:
        """All that is in a small file; None if there is none."""
        try:
            with self.open(name) as fd:
                return read_at(fd, 0, os.fstat(fd).st_size)
        except FileNotFoundError:
            return None

    def stat(self, name: str) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return None

    def names(self, *, directories: bool = False) -> list[str]:
        """The entries that are files, or directories; links are neither."""
        with os.scandir(self._fd) as entries:
            return [
                entry.name
                for entry in entries
                if (entry.is_dir if directories else entry.is_file)(follow_symlinks=False)
            ]

    def is_empty(self) -> bool:
        with os.scandir(self._fd) as entries:
            return next(entries, None) is None

    def put(self, name: str, data: bytes) -> None:
        """Make *data* the whole content of *name*, at once and for good.

        A crash leaves the old file or the new one, and perhaps one called as `temporary` says.
        Two must not put the same name at a time.
        """
        other = temporary(name)
        self.drop(other)
        try:
            with self.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                write_at(fd, data, 0)
                sync(fd)
            os.rename(other, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with suppress(OSError):
                self.drop(other)
            raise
        os.fsync(self._fd)

    def link(self, name: str, other: Folder) -> None:
        """Let the file *name* be in *other* as well."""
        os.link(name, name, src_dir_fd=self._fd, dst_dir_fd=other._fd, follow_symlinks=False)

    def drop(self, name: str) -> bool:
        """Remove a file; False if there was none. `sync` makes it last."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)
            return True
        return False

    def drop_folder(self, name: str) -> None:
        """Remove the directory *name* if it is empty."""
        try:
            os.rmdir(name, dir_fd=self._fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def sync(self) -> None:
        os.fsync(self._fd)

    @contextmanager
    def lock(self, name: str) -> Iterator[int]:
        """Hold the file *name* alone among all threads and processes; give the open file.

        The system frees it when the holder dies.
        """
        with self.open(name, os.O_RDWR | os.O_CREAT) as fd:
            _flock(fd, name)
            with suppress(OSError):
                os.utime(fd, ns=(time.time_ns(), time.time_ns()))
            try:
                yield fd
            finally:
                # A child forked meanwhile shares the lock; closing alone would leave it held.
                fcntl.flock(fd, fcntl.LOCK_UN)


def _flock(fd: int, name: str) -> None:
    """Take the lock, waiting for its holders, but not for one that was stopped.

    Every holder stamps the file, so that many who hold it in turn are not taken for one.
    """
    began, stamp, wait = time.monotonic(), os.fstat(fd).st_mtime_ns, 0.001
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            now, newest = time.monotonic(), os.fstat(fd).st_mtime_ns
            if newest != stamp:
                began, stamp = now, newest
            elif now - began > LOCK_SECONDS:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"another process has held the lock for {LOCK_SECONDS:g} s",
                    name,
                ) from error
        time.sleep(wait)
        wait = min(2 * wait, 0.005)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def _open(name: str | Path, flags: int, directory: int | None = None) -> int:
    if flags & os.O_EXCL:
        # It may have been made by an attempt that failed, and is then not new any more.
        return os.open(name, flags, 0o600, dir_fd=directory)
    return retried(lambda: os.open(name, flags, 0o600, dir_fd=directory), _SOON)


def temporary(name: str) -> str:
    """The name of a file until it is complete."""
    return f".{name}.tmp"


@contextmanager
def open_root(path: Path, *, create: bool = False) -> Iterator[Folder | None]:
    """The directory at *path*, or behind a link; None if missing and not to be made."""
    if create:
        _make(path)
    with ExitStack() as stack:
        root = None
        with suppress(FileNotFoundError):
            fd = _open(path, _DIRECTORY)
            stack.callback(os.close, fd)
            root = Folder(fd)
        yield root


def _make(path: Path) -> None:
    missing = []
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    for made in reversed(missing):
        with suppress(FileExistsError):
            made.mkdir(0o700)
        with open_root(made.parent) as parent:
            if parent is not None:
                parent.sync()
