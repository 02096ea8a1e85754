"""A lock between processes, held by the system: not stolen, released by a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from surehold.core.records import Owner
from surehold.errors import StorageUnavailableError, UsageError
from surehold.forks import register_at_fork
from surehold.storage.io.dirfd import os_errors, read_at, write_at
from surehold.storage.process import this_process

_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.1


@contextmanager
def file_lock(
    path: str | os.PathLike[str],
    *,
    timeout: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Hold the lock file at *path* alone among the processes of this machine.

    The system holds it for the open file, so it cannot be taken from a holder that lives, however
    slow or paused that is, and is free the moment the holder ends, however that comes about. After
    *timeout* seconds of waiting a `StorageUnavailableError` names the holder. The file stays where
    it is. It is not for network file systems that do not pass locks on.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory, file_lock(f"{directory}/lock"):
    ...     pass
    """
    if timeout < 0:
        raise UsageError(f"timeout is {timeout}", hint="give 0 or more seconds")
    target = Path(path)
    fd, pid = _taken(target, timeout, clock), os.getpid()
    _held.add(fd)
    try:
        yield
    finally:
        if pid == os.getpid():
            _held.discard(fd)
            try:
                # A child that was forked a moment ago may not have closed its copy yet.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


def _taken(path: Path, timeout: float, clock: Callable[[], float]) -> int:
    """The open lock file, locked."""
    end, wait = clock() + timeout, _FIRST_WAIT
    with os_errors(path.parent):
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if _try(fd, path):
                    return fd
                left = end - clock()
                if left <= 0:
                    raise _held_by_another(fd, path, timeout)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT)


def _try(fd: int, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EINTR):
            return False
        raise
    # Someone may have removed the file meanwhile: then this lock excludes no other process.
    there = None
    with suppress(FileNotFoundError):
        there = os.stat(path, follow_symlinks=False)
    here = os.fstat(fd)
    if there is None or (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
        return False
    os.ftruncate(fd, 0)
    write_at(fd, msgspec.json.encode(this_process()), 0)
    return True


def _held_by_another(fd: int, path: Path, timeout: float) -> StorageUnavailableError:
    try:
        owner = msgspec.json.decode(read_at(fd, 0, 4096), type=Owner)
        holder = f"process {owner.pid} on {owner.host.partition('/')[0]}"
    except msgspec.MsgspecError:
        owner, holder = None, "another process"
    return StorageUnavailableError(
        f"{path} is held by {holder}; it was waited for {timeout:g} s",
        hint="wait for it to end, or stop that process; the lock goes with it",
        path=str(path),
        owner=owner,
    )


_held: set[int] = set()
"""The lock files that are open and locked."""


def _let_go_in_child() -> None:
    """Close in a child what its parent holds: the lock must not outlive it."""
    while _held:
        os.close(_held.pop())


register_at_fork(after_in_child=_let_go_in_child)
