"""Files read and written with retries for transient errors; others are raised.

Every function takes a `Retry`. What fails for a moment (a busy resource, a stale handle, a network
that is down) is tried again, longer and longer apart; a missing file or a refused permission fails
at once. A call that hangs is given up at the deadline. What is written is there whole or not at
all, and lasts once the function returns.

Errors are those of Surehold, with the `OSError` as their cause: `NotFoundError` for what is
missing, `StorageFullError`, `StorageUnavailableError` for what was still not to be had after all
retries, `StorageError` for the rest. `.path` and `.errno` say where and what; `.tried` names every
method that was tried where there is more than one.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as directory:
...     write_json(f"{directory}/plan.json", {"step": 1})
...     read_json(f"{directory}/plan.json")
{'step': 1}
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar, overload

import msgspec

from surehold.errors import DecodeError, EncodeError, NotFoundError, StorageError
from surehold.storage.io.atomic_files import replacing
from surehold.storage.io.dirfd import os_errors, sync, write_at
from surehold.storage.io.file_lock import file_lock
from surehold.storage.retries import CallProgress, Retry, is_transient, retried, within

__all__ = [
    "Retry",
    "append",
    "atomic_write",
    "copy",
    "delete",
    "file_lock",
    "is_transient",
    "list_dir",
    "move",
    "read_file",
    "read_json",
    "write_file",
    "write_json",
]

T = TypeVar("T")
PathLike: TypeAlias = str | os.PathLike[str]
Method: TypeAlias = tuple[str, Callable[[], T]]

CHUNK = 1 << 20
"""Bytes that are moved at a time."""
_DEFAULT = Retry()
_ONCE = Retry(retries=0)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEXT_METHOD = {
    *(errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ENOTTY),
    errno.EIO,
}
"""Errors after which another way is tried."""


# Reading


@overload
def read_file(path: PathLike, *, encoding: str = "utf-8", retry: Retry = _DEFAULT) -> str: ...


@overload
def read_file(path: PathLike, *, encoding: None, retry: Retry = _DEFAULT) -> bytes: ...


def read_file(
    path: PathLike, *, encoding: str | None = "utf-8", retry: Retry = _DEFAULT
) -> str | bytes:
    """All that is in a file, as text, or as bytes if *encoding* is None.

    It is read in chunks, each tried again by itself.
    """
    target = Path(path)
    data = _run(target, retry, "reading", lambda progress: _read(target, retry, progress))
    if encoding is None:
        return data
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DecodeError(f"{target} is not {encoding} text", path=str(target)) from error


def _read(path: Path, retry: Retry, progress: CallProgress) -> bytes:
    chunks: list[bytes] = []
    with _opened(path, os.O_RDONLY, retry) as fd:
        at = 0
        while chunk := retried(partial(os.pread, fd, CHUNK, at), retry):
            chunks.append(chunk)
            at += len(chunk)
            progress.moved()
    return b"".join(chunks)


def read_json(path: PathLike, *, retry: Retry = _DEFAULT) -> Any:
    """Read the JSON value in a file; a `DecodeError` if it is none."""
    try:
        return msgspec.json.decode(read_file(path, encoding=None, retry=retry))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(f"{path} is not JSON: {error}", path=str(path)) from error


def list_dir(path: PathLike, pattern: str = "*", *, retry: Retry = _DEFAULT) -> list[Path]:
    """The entries of a directory that fit *pattern*, sorted by name."""
    target = Path(path)
    names = _run(
        target, retry, "listing", lambda _: retried(lambda: sorted(os.listdir(target)), retry)
    )
    return [target / name for name in fnmatch.filter(names, pattern)]


# Writing


def write_file(
    path: PathLike,
    data: str | bytes | Iterable[bytes],
    *,
    encoding: str = "utf-8",
    retry: Retry = _DEFAULT,
) -> None:
    """Make *data* the whole content of a file, at once: see `atomic_write`.

    Chunks given as an iterable are taken once, so that what fails after the first is not retried.
    """
    target = Path(path)
    if isinstance(data, str):
        data = data.encode(encoding)
    if not isinstance(data, bytes):
        once = msgspec.structs.replace(retry, retries=0)
        _run(target, once, "writing", lambda progress: _write(target, data, progress))
        return
    whole = memoryview(data)

    def work(progress: CallProgress) -> None:
        chunks = (whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK))
        _write(target, chunks, progress)

    _run(target, retry, "writing", lambda progress: retried(lambda: work(progress), retry))


def _write(path: Path, chunks: Iterable[bytes | memoryview], progress: CallProgress) -> None:
    with replacing(path, progress) as file:
        for chunk in chunks:
            file.write(chunk)
            progress.moved()


def write_json(
    path: PathLike, value: Any, *, indent: int | None = None, retry: Retry = _DEFAULT
) -> None:
    """Write *value* as JSON, at once; an `EncodeError` if JSON cannot express it."""
    try:
        text = msgspec.json.encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise EncodeError(f"this is not JSON: {error}", path="") from error
    if indent is not None:
        text = msgspec.json.format(text, indent=indent)
    write_file(path, text + b"\n", retry=retry)


@contextmanager
def atomic_write(path: PathLike) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of *path* when the block ends well.

    Until then, and after an error or a crash, what was at *path* is there as it was. When this
    returns the new file lasts: it was synced, put in place, and its directory was synced. A new
    file is its owner's alone; one that is replaced keeps its permissions. What a crash leaves
    behind is removed by the next write to the same path. Nothing is retried: `write_file` does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with atomic_write(f"{directory}/report") as file:
    ...         _ = file.write(b"done")
    ...     read_file(f"{directory}/report")
    'done'
    """
    target = Path(path)
    with _errors(target), replacing(target, CallProgress()) as file:
        yield file


def append(
    path: PathLike, data: str | bytes, *, encoding: str = "utf-8", retry: Retry = _DEFAULT
) -> None:
    """Add *data* to the end of a file, made if missing; durable when this returns.

    Appends of several processes never mix. After an error the file is cut back to its old size,
    if the system allows it.
    """
    target = Path(path)
    raw = data.encode(encoding) if isinstance(data, str) else data

    def work(progress: CallProgress) -> None:
        with _opened(target, os.O_RDWR | os.O_CREAT, retry) as fd:
            # Before, as what fails after the data is there would have it written twice.
            _sync_directory(target.parent)
            fcntl.flock(fd, fcntl.LOCK_EX)  # closing the file lets it go
            _extend(fd, raw, progress)

    _run(target, retry, "appending to", lambda progress: retried(lambda: work(progress), retry))


def _extend(fd: int, data: bytes, progress: CallProgress) -> None:
    end = os.fstat(fd).st_size
    try:
        for at in range(0, len(data), CHUNK):
            write_at(fd, data[at : at + CHUNK], end + at)
            progress.moved()
        sync(fd)
        progress.moved()
    except BaseException:
        # What a sync that failed was about must be written anew: it is not tried again as it is.
        os.ftruncate(fd, end)
        raise


# Copying, moving, deleting


def copy(source: PathLike, target: PathLike, *, retry: Retry = _DEFAULT) -> None:
    """Copy a file, its permissions too; *target* is there whole or not at all."""
    old, new = Path(source), Path(target)
    _run(old, retry, "copying", lambda progress: _copy(old, new, retry, progress))


def _copy(source: Path, target: Path, retry: Retry, progress: CallProgress) -> None:
    def by(step: Callable[[int, int, int], int]) -> Callable[[], None]:
        return lambda: retried(lambda: _copy_by(step, source, target, progress), retry)

    _first_that_works(
        [("copy_file_range", by(_in_kernel)), ("read and write", by(_through_memory))]
    )


def _copy_by(
    step: Callable[[int, int, int], int], source: Path, target: Path, progress: CallProgress
) -> None:
    with _opened(source, os.O_RDONLY, _ONCE) as old:
        progress.moved()  # before anything is made: the caller may have given up on the opening
        with replacing(target, progress) as file:
            at = 0
            while moved := step(old, file.fileno(), at):
                at += moved
                progress.moved()
            if not target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(old).st_mode))


def _in_kernel(old: int, new: int, at: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "this system has no copy_file_range")
    return os.copy_file_range(old, new, CHUNK, at, at)


def _through_memory(old: int, new: int, at: int) -> int:
    chunk = os.pread(old, CHUNK, at)
    write_at(new, chunk, at)
    return len(chunk)


def move(source: PathLike, target: PathLike, *, retry: Retry = _DEFAULT) -> None:
    """Move a file, also to another file system; an existing *target* is replaced.

    Between file systems it is copied, and deleted once the copy lasts: a crash leaves both rather
    than none.
    """
    old, new = Path(source), Path(target)

    def rename() -> None:
        retried(lambda: os.rename(old, new), retry)
        for directory in {new.parent, old.parent}:
            _sync_directory(directory)

    def work(progress: CallProgress) -> None:
        def copy_then_delete() -> None:
            _copy(old, new, retry, progress)
            retried(lambda: os.unlink(old), retry)
            _sync_directory(old.parent)

        _first_that_works([("rename", rename), ("copy, then delete", copy_then_delete)])

    _run(old, retry, "moving", work)


def delete(path: PathLike, *, missing_ok: bool = False, retry: Retry = _DEFAULT) -> bool:
    """Delete a file durably; False if it is missing and *missing_ok* is set."""
    target = Path(path)

    def work(_: CallProgress) -> bool:
        try:
            retried(lambda: os.unlink(target), retry)
        except FileNotFoundError:
            if not missing_ok:
                raise
            return False
        _sync_directory(target.parent)
        return True

    return _run(target, retry, "deleting", work)


# What they share


def _run(path: Path, retry: Retry, doing: str, work: Callable[[CallProgress], T]) -> T:
    with _errors(path):
        return within(retry.deadline, work, f"{doing} {path}")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        with os_errors(path.parent):
            yield
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError):
            raise NotFoundError(
                f"there is no {cause.filename or path}", path=str(path), errno=cause.errno
            ) from cause
        if isinstance(cause, OSError) and (tried := getattr(cause, "tried", ())):
            message = f"{error.message}; tried: {', '.join(tried)}"
            facts = error.facts | {"tried": tried}
            raise type(error)(message, hint=error.hint, **facts) from cause
        raise


def _first_that_works(methods: list[Method[None]]) -> None:
    """Try one method after the other until one works; the error names them."""
    for number, (_, method) in enumerate(methods, 1):
        try:
            return method()
        except OSError as error:
            if number == len(methods) or error.errno not in _NEXT_METHOD:
                error.tried = tuple(name for name, _ in methods[:number])  # type: ignore[attr-defined]
                raise


@contextmanager
def _opened(path: Path, flags: int, retry: Retry) -> Iterator[int]:
    fd = retried(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600), retry)
    try:
        yield fd
    finally:
        os.close(fd)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, _DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
