"""Connections to one database file: one writes, a few read, none crosses a fork."""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

import apsw

from surehold.errors import (
    CorruptError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.forks import register_at_fork
from surehold.storage.sqlite.page_checksums import PAGE, checked_pages
from surehold.storage.sqlite.schema import check_names, make_file, make_schema, refusal, use_log

T = TypeVar("T")

_LOG_PAGES = 128
"""Pages of the write-ahead log after which it is brought into the database."""
_LONGER = 8
"""Times longer under group commits, of which each would else be followed by the syncs
that bringing the log in takes."""
_FULL = 2
_SETTINGS = {
    "synchronous": _FULL,
    "temp_store": "memory",
    "cell_size_check": True,
    # An exported run may come from anywhere.
    "trusted_schema": False,
    # What was erased must be gone, a run's key above all.
    "secure_delete": "fast",
    "cache_size": -16_384,
    # `Pool.write` brings the log in itself: a commit that is stored must not fail for that.
    "wal_autocheckpoint": 0,
    "journal_size_limit": _LOG_PAGES * PAGE,
}
_IDLE_READERS = 4
_LOOKS_EVERY = 1.0
"""Seconds between two looks whether the file is still there; each costs a bit of an append."""
_PATIENCE = 30.0
"""Seconds a fork waits for calls that are under way. Only the forking thread's own take longer."""
_OPENS_AGAIN = 0.01
"""Seconds until a file that others are opening is tried again."""
_RIGHTS = "this user needs the right to write to the file and to its directory"
_DISK = "the disk or its driver failed: look into the system's log"

_opening = threading.RLock()
"""Held while a file is made or a process forks."""


class Pool:
    """Lends connections to the database at *path*, which is made if it is missing.

    Whatever goes wrong while one is lent comes out as an error of Surehold's.
    """

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._closed = False
        self._pid: int | None = None
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        """The log that the connections write to, once it is known."""
        self._log_pages = [0]
        """Pages in the log after the writer's last commit."""
        self._looks_again = 0.0
        self._cramped = False
        """True if SQLite found no room for its shared memory: then it can only read."""
        self._errors = _Errors(path, busy_timeout)
        self._renew_locks()
        self._writer: apsw.Cursor | None = None
        """A cursor of the connection that writes: a new one for each statement takes time."""
        self._idle: list[apsw.Connection] = []
        with self._errors, _opening:
            make_file(path)
            patience = time.monotonic() + busy_timeout
            check_names(path)
            while True:
                try:
                    self._begin()
                    break
                except (apsw.CorruptError, apsw.NotADBError) as error:
                    raise refusal(path, error) from error
                except apsw.BusyError:
                    # Taking up the log does not wait for others that open the file just now.
                    if time.monotonic() > patience:
                        raise
                    time.sleep(_OPENS_AGAIN)
                except apsw.IOError as error:
                    with closing(self._connect_without_room(error)) as reader:
                        make_schema(reader, path)
                    break
            self._file = self._file_now()
            _watched_for_forks().add(self)

    def _begin(self) -> None:
        self._writer = self._connect_writer()
        try:
            make_schema(self._writer.connection, self._path)
            use_log(self._writer.connection, self._path)
        except BaseException:
            self._disconnect()
            raise

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection to read with. Statements must have ended when it is given back."""
        with self._errors:
            reader = self._borrow()
            try:
                if reader is None:
                    reader = self._connect_reader()
                yield reader
            except BaseException:
                if reader is not None:
                    reader.close(force=True)
                    reader = None
                raise
            finally:
                self._give_back(reader)

    @contextmanager
    def snapshot(self, several: bool = True) -> Iterator[apsw.Connection]:
        """A connection whose statements, if there are *several*, all see the same moment."""
        with self.reading() as db:
            if several:
                db.execute("BEGIN")
            try:
                yield db
            finally:
                if several:
                    db.execute("ROLLBACK")

    def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do *work* in a transaction, alone among all threads and processes.

        What it wrote is kept whole, or on error not at all, and survives power loss once this
        returns.
        """
        return self.append(lambda cursor: work(cursor.connection))

    def append(self, work: Callable[[apsw.Cursor], T], batches: int = 1) -> T:
        """Run *work*, which appends *batches* batches, in one transaction."""
        try:
            with self._writing:
                writer = self._open_writer()
                try:
                    writer.execute("BEGIN IMMEDIATE")
                    result = work(writer)
                    writer.execute("COMMIT")
                    if self._log is None:
                        self._log = _identity(f"{self._path}-wal")
                except BaseException as error:
                    connection = writer.connection
                    # Another cursor: the statement of this one may not have ended.
                    self._writer = connection.cursor()
                    writer.close(force=True)
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError):
                        self._reconnect()
                    raise
                pages = self._log_pages[0]
                if pages >= _LOG_PAGES and pages >= _LOG_PAGES * min(batches, _LONGER):
                    self._bring_log_in(writer.connection)
                return result
        except Exception as error:
            if (meaning := self._errors.meaning(error)) is not None:
                raise meaning from error
            raise

    def _bring_log_in(self, writer: apsw.Connection) -> None:
        """Copy the log into the database; on failure the log keeps what was committed."""
        with suppress(apsw.FullError, apsw.IOError, apsw.BusyError):
            writer.wal_checkpoint()

    @contextmanager
    def maintaining(self) -> Iterator[apsw.Connection]:
        """The connection that writes, without a transaction."""
        with self._errors, self._writing:
            yield self._open_writer().connection

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Have no connection open or lent meanwhile; then use what is at the path."""
        with self._errors, self._writing, self._state:
            self._state.wait_for(lambda: self._lent == 0)
            self._disconnect()
            try:
                yield
            finally:
                self._file = self._file_now()

    def check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the storage on {self._path} is closed", hint="open a new one")

    def close(self) -> None:
        """Bring the log into the database, if no other process uses it; release the file.

        Without room for that the log stays, and whoever opens the database next reads it.
        """
        with self._errors, self._writing, self._state:
            self._closed = True
            self._state.wait_for(lambda: self._lent == 0)
            if self._pid == os.getpid():
                with suppress(apsw.FullError):
                    self._disconnect()

    def close_at_exit(self) -> None:
        """Close what no thread uses, quietly: the interpreter would print errors of it."""
        if self._pid == os.getpid() and self._writing.acquire(blocking=False):
            try:
                with suppress(apsw.Error):
                    self._disconnect()
            finally:
                self._writing.release()

    def _check(self) -> None:
        self.check_open()
        if self._pid not in (None, os.getpid()):
            raise StorageError(
                f"{self._path} was in use when the process forked",
                hint="fork while no call to the storage is under way",
                path=str(self._path),
            )

    def _look(self) -> None:
        """See that the file and its log are still there: what is saved elsewhere is lost."""
        log = f"{self._path}-wal"
        gone = ""
        if self._file != self._file_now():
            gone = str(self._path)
        elif self._log is not None and self._log != _identity(log):
            gone = log
        if gone:
            raise StorageError(
                f"{gone} was deleted or replaced while it was open",
                hint="put it back, or open the storage again",
                path=gone,
            )
        self._looks_again = time.monotonic() + _LOOKS_EVERY

    def _file_now(self) -> tuple[int, int] | None:
        return _identity(str(self._path))

    def _open_writer(self) -> apsw.Cursor:
        if self._closed or self._pid != os.getpid():
            self._check()
        if time.monotonic() >= self._looks_again:
            self._look()
        if self._writer is None:
            self._writer = self._connect_writer()
        if self._writer.connection.in_transaction:
            # An interrupt came before the block that would have ended it.
            self._writer.execute("ROLLBACK")
        return self._writer

    def _borrow(self) -> apsw.Connection | None:
        with self._state:
            self._check()
            self._lent += 1
            return self._idle.pop() if self._idle else None

    def _give_back(self, reader: apsw.Connection | None) -> None:
        with self._state:
            self._lent -= 1
            if reader is not None and len(self._idle) < _IDLE_READERS and not self._cramped:
                self._idle.append(reader)
            elif reader is not None:
                reader.close()
            if self._lent == 0:
                self._state.notify_all()

    def _connect_writer(self) -> apsw.Cursor:
        writer, pages = self._connect(), self._log_pages

        def committed(_db: apsw.Connection, _name: str, count: int) -> int:
            pages[0] = count
            return apsw.SQLITE_OK

        writer.set_wal_hook(committed)
        return writer.cursor()

    def _connect_reader(self) -> apsw.Connection:
        try:
            reader = self._connect()
        except apsw.IOError as error:
            return self._connect_without_room(error)
        self._cramped = False
        reader.pragma("query_only", True)
        return reader

    def _connect_without_room(self, error: apsw.IOError) -> apsw.Connection:
        """A connection that only reads, or *error* if there is a log, or room."""
        path = self._path
        log = Path(f"{path}-wal")
        if not _lacks_room(error) or (log.exists() and log.stat().st_size):
            raise error
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        self._cramped = True
        uri = f"{path.absolute().as_uri()}?immutable=1"
        return apsw.Connection(uri, flags=flags, vfs=checked_pages())

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path), vfs=checked_pages())
        self._pid = os.getpid()
        try:
            connection.set_busy_timeout(int(self._busy_timeout * 1000))
            for setting, value in _SETTINGS.items():
                connection.pragma(setting, value)
            if connection.pragma("synchronous") != _FULL:
                raise StorageError("this SQLite does not sync its commits", path=str(self._path))
        except BaseException:
            connection.close(force=True)
            raise
        return connection

    def _disconnect(self) -> None:
        """Close all connections, the last of which leaves no log behind."""
        self._log = None
        self._pid = None
        while self._idle:
            self._idle.pop().close()
        writer, self._writer = self._writer, None
        if writer is not None:
            connection = writer.connection
            writer.close(force=True)
            connection.close()

    def _reconnect(self) -> None:
        """Open everything anew before the next call.

        A log that could not be opened for writing once is read-only for SQLite for as long as
        the connection lasts.
        """
        with self._state:
            self._disconnect()

    def _renew_locks(self) -> None:
        self._writing = threading.Lock()
        self._state = threading.Condition()
        self._lent = 0
        self._paused = False

    def pause(self) -> None:
        """Close all connections before the process forks; block callers until `resume`.

        A child that inherits a connection believes in locks that it does not hold: once its
        parent closes, the log is deleted under it, and what the child saves is lost.
        """
        if not self._writing.acquire(timeout=_PATIENCE):
            return
        self._state.acquire()
        if self._state.wait_for(lambda: self._lent == 0, timeout=_PATIENCE):
            self._paused = True
            self._disconnect()
        else:
            self._state.release()
            self._writing.release()

    def resume(self, *, in_child: bool) -> None:
        if in_child:
            self._renew_locks()
        elif self._paused:
            self._paused = False
            self._state.release()
            self._writing.release()


def _lacks_room(error: apsw.IOError) -> bool:
    """True if SQLite found no room for the memory that connections share."""
    code: int = getattr(error, "extendedresult", 0)
    return code == apsw.SQLITE_IOERR_SHMSIZE


def _identity(path: str) -> tuple[int, int] | None:
    """The device and inode of a file; None if there is none."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    return stat.st_dev, stat.st_ino


class _Errors:
    """Turns what SQLite and the system raise within into what it means."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = str(path)
        self._waited = f"it was waited for {busy_timeout:g} s; try again"

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None and (meaning := self.meaning(error)) is not None:
            raise meaning from error

    def meaning(self, error: BaseException) -> SureholdError | None:
        """Translate *error* into a `SureholdError`; None to raise *error* itself."""
        path = self._path
        match error:
            case apsw.CorruptError() | apsw.NotADBError() | UnicodeDecodeError():
                return CorruptError(f"{path} is damaged: {error}", path=path)
            case apsw.FullError():
                return StorageFullError(f"no room left for {path}", path=path)
            case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
                message = f"{path} is locked by another process: {error}"
                return StorageUnavailableError(message, hint=self._waited, path=path)
            case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
                return StorageError(f"{path}: {error}", hint=_RIGHTS, path=path)
            case apsw.IOError() if _lacks_room(error):
                return StorageFullError(f"no room left for {path}", path=path)
            case apsw.IOError():
                return StorageError(f"{path}: {error}", hint=_DISK, path=path)
            case apsw.Error():
                return StorageError(f"SQLite failed on {path}: {error}", path=path)
            case OSError(errno=errno.ENOSPC | errno.EDQUOT):
                return StorageFullError(f"no room left for {path}", path=path)
            case OSError():
                return StorageError(f"{path}: {error.strerror}", hint=_RIGHTS, path=path)
            case UnicodeEncodeError() | OverflowError():
                return UsageError(f"this value can be neither stored nor looked up: {error}")
        return None


_open: WeakSet[Pool] = WeakSet()
_paused: list[Pool] = []
"""The pools that are open, and those that a fork has stopped."""


@cache
def _watched_for_forks() -> WeakSet[Pool]:
    """The pools that are open; the first call makes forks stop at them."""
    atexit.register(_close_all)
    register_at_fork(
        before=_pause_all,
        after_in_parent=_resume_all,
        after_in_child=_resume_all_in_child,
    )
    return _open


def _pause_all() -> None:
    _opening.acquire()
    _paused.extend(_open)
    for pool in _paused:
        pool.pause()


def _resume_all(*, in_child: bool = False) -> None:
    while _paused:
        _paused.pop().resume(in_child=in_child)
    _opening.release()


def _resume_all_in_child() -> None:
    _resume_all(in_child=True)


def _close_all() -> None:
    for pool in list(_open):
        pool.close_at_exit()
