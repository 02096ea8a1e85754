"""Files replaced as a whole: the old one stays until the new one is durable."""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from surehold.storage.io.dirfd import sync
from surehold.storage.retries import CallProgress

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def replacing(path: Path, progress: CallProgress) -> Iterator[BinaryIO]:
    """A file that replaces *path* when the block ends well, unless it was given up."""
    directory = os.open(path.parent, _DIRECTORY)
    try:
        _sweep(directory, path.name)
        name, fd = _temporary(directory, path.name)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                _keep_mode(directory, path.name, fd)
                sync(fd)
                # Whoever gave up on this must not find it done later.
                progress.moved()
                os.rename(name, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)


def _temporary(directory: int, name: str) -> tuple[str, int]:
    """A new file, locked while it is open so that no one sweeps it away."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        other = f"{_prefix(name)}{secrets.token_hex(6)}.tmp"
        fd = os.open(other, flags, 0o600, dir_fd=directory)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return other, fd
        os.close(fd)


def _prefix(name: str) -> str:
    # A file name has 255 bytes at most, and the rest of ours needs a few.
    return f".{name.encode()[:200].decode(errors='ignore')}."


def _sweep(directory: int, name: str) -> None:
    """Remove temporary files that dead writers of this file left behind."""
    pattern = f"{glob.escape(_prefix(name))}{'[0-9a-f]' * 12}.tmp"
    for left in fnmatch.filter(os.listdir(directory), pattern):
        with suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(left, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(left, dir_fd=directory)
            finally:
                os.close(fd)


def _keep_mode(directory: int, name: str, fd: int) -> None:
    with suppress(FileNotFoundError):
        old = os.stat(name, dir_fd=directory)
        if stat.S_ISREG(old.st_mode):
            os.fchmod(fd, stat.S_IMODE(old.st_mode))
