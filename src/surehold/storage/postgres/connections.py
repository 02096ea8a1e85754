"""Connections to PostgreSQL: a pool, time limits, and errors in Surehold's terms.

A connection carries no session state, so a pooler in transaction mode may stand in between:
nothing is set or locked beyond one transaction, and a statement is prepared only without a pooler.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import ceil
from typing import TypeVar

from surehold.errors import (
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.lazy import extra
from surehold.storage.addresses import mask_url
from surehold.storage.shared import patiently

with extra("postgres", "PostgreSQL storages need psycopg"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg_pool import ConnectionPool, PoolTimeout

    from surehold.storage.postgres.statement import BinaryDumper, BinaryValue, PooledConnection

T = TypeVar("T")

_CONNECT_SECONDS = 10
_POOL_SECONDS = 2
_CANCEL_SECONDS = 2
_ADDRESS = (
    "write postgresql://user@host:5432/database?schema=name; options are schema, pool, timeout,"
    " patience, upgrade, compress, redundancy and those of libpq"
)
_UNREACHABLE = ("08", "57P", "53300", "25006", "40001", "40P01", "55P03")
"""Classes and codes of errors after which the same call may succeed."""
_REFUSALS = (
    *("authentication failed", "no password supplied", "no pg_hba.conf entry"),
    *("does not exist", "not permitted to log in", "permission denied"),
    *("server does not support SSL", "certificate verify failed"),
)
"""Texts of connections that the server refused, which come without a code."""
_IDLE = psycopg.pq.TransactionStatus.IDLE


class Connections:
    """A pool that survives forks, server restarts, and servers that stop answering.

    A call that fails because the server is away, restarting or read-only is repeated for up to
    *patience* seconds; a statement that takes longer than *timeout* seconds is given up.
    """

    def __init__(self, url: str, *, size: int, timeout: float, patience: float) -> None:
        self._url = url
        self._size = size
        self._timeout = timeout
        self._patience = patience
        self._lock = threading.Lock()
        self._pool: ConnectionPool[PooledConnection] | None = None
        self._pid = os.getpid()
        self._closed = False
        self._deadlines = _Deadlines()
        self._kept: PooledConnection | None = None
        """The connection that the next call takes: faster than through the pool."""
        self._waiting = 0
        """Calls that wait for the pool, so that nothing may be kept from it."""

    def run(self, work: Callable[[PooledConnection], T]) -> T:
        """Give *work* a connection, and repeat it while the server is away.

        *work* must be safe to repeat whether or not an earlier attempt was committed.
        """
        return patiently(partial(self._attempt, work), self._patience)

    def run_once(self, work: Callable[[psycopg.Connection], T]) -> T:
        """Give *work* a connection of its own, and fail at once if the server is away."""
        try:
            with self.connect() as db:
                self._deadlines.begin(db, self._timeout)
                try:
                    return work(db)
                finally:
                    self._deadlines.end(db)
        except psycopg.Error as error:
            _forget_password(error)
            raise self._translate(error) from error

    def connect(self) -> psycopg.Connection:
        """Open a connection outside of the pool."""
        return psycopg.connect(self._conninfo(), autocommit=True, prepare_threshold=None)

    def check_open(self) -> None:
        """Raise a `UsageError` if the storage was closed."""
        if self._closed:
            raise UsageError("the storage is closed", hint="open it again")

    def widen(self, size: int) -> int:
        """Allow so many connections, if that is more than now; the number allowed."""
        with self._lock:
            self._size = max(self._size, size)
            if self._pool is not None and self._pid == os.getpid():
                self._pool.resize(1, self._size)
            return self._size

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
            kept, self._kept = self._kept, None
        if pool is not None and self._pid == os.getpid():
            if kept is not None:
                pool.putconn(kept)
            pool.close(timeout=1)
        self._deadlines.close()

    def _attempt(self, work: Callable[[PooledConnection], T]) -> T:
        try:
            db = self._take()
            failed = True
            try:
                self._deadlines.begin(db, self._timeout)
                result = work(db)
                failed = False
                return result
            finally:
                self._deadlines.end(db)
                self._give_back(db, failed)
        except (psycopg.Error, PoolTimeout) as error:
            _forget_password(error)
            raise self._translate(error) from error

    def _take(self) -> PooledConnection:
        with self._lock:
            db = self._kept
            if db is not None and self._pid == os.getpid():
                self._kept = None
                return db
            pool = self._open_pool()
            self._waiting += 1
        try:
            # A pool connects in the background, so a call that may not be repeated waits too.
            return pool.getconn(timeout=min(_CONNECT_SECONDS, max(self._patience, _POOL_SECONDS)))
        finally:
            with self._lock:
                self._waiting -= 1

    def _give_back(self, db: PooledConnection, failed: bool) -> None:
        with self._lock:
            pool = self._pool
            idle = db.pgconn.transaction_status == _IDLE
            if idle and not (failed or self._kept or self._waiting or pool is None):
                self._kept = db
                return
        if pool is not None:
            pool.putconn(db)  # which rolls back what an error has left
        else:
            db.close()

    def _open_pool(self) -> ConnectionPool[PooledConnection]:
        self.check_open()
        if self._pid != os.getpid():
            # The parent's sockets are the parent's: dropped here without a goodbye.
            self._pid, self._pool, self._deadlines = os.getpid(), None, _Deadlines()
            self._kept, self._waiting = None, 0
        if self._pool is None:
            self._pool = ConnectionPool(
                self._conninfo(),
                min_size=1,
                max_size=self._size,
                kwargs={"autocommit": True, "prepare_threshold": None},
                connection_class=PooledConnection,
                configure=_configure,
                open=True,
                name="surehold",
                reconnect_timeout=_CONNECT_SECONDS,
            )
        return self._pool

    def _conninfo(self) -> str:
        if "://" not in self._url:
            # A text without slashes may hold a password anywhere, so none of it is shown.
            raise UsageError("the address of a PostgreSQL storage has two slashes", hint=_ADDRESS)
        try:
            given = conninfo_to_dict(self._url)
        except psycopg.Error as error:
            why = mask_url(str(error).strip())
            raise UsageError(
                f"{mask_url(self._url)!r} is not a PostgreSQL address: {why}", hint=_ADDRESS
            ) from None
        if not all(port.isdigit() for port in str(given.get("port", "0")).split(",") if port):
            raise UsageError(f"the port of {mask_url(self._url)!r} is not a number", hint=_ADDRESS)
        defaults: dict[str, str | int] = {
            "connect_timeout": max(2, min(_CONNECT_SECONDS, ceil(self._timeout))),
            "application_name": "surehold",
            "tcp_user_timeout": int(self._timeout * 1000),
        }
        return make_conninfo(self._url, **{k: v for k, v in defaults.items() if k not in given})

    def _translate(self, error: Exception) -> StorageError:
        state = getattr(error, "sqlstate", None) or ""
        text = mask_url(str(error).strip().partition("\n")[0]) or type(error).__name__
        where = mask_url(self._url)
        if state == "53100":
            return StorageFullError(f"{where} has no room left: {text}")
        if state == "25006":
            return StorageUnavailableError(
                f"{where} is read-only: {text}",
                hint="connect to the primary, or add ?target_session_attrs=read-write",
            )
        if state == "57014":
            return StorageUnavailableError(
                f"{where} took longer than {self._timeout:g} s", hint="see timeout= of the address"
            )
        if state in ("28P01", "28000", "3D000", "42501", "42P01", "3F000") or (
            not state and any(words in text for words in _REFUSALS)
        ):
            return StorageError(
                f"{where} refused: {text}",
                hint="check user, password, database, privileges and sslmode",
            )
        if isinstance(error, PoolTimeout) or state.startswith(_UNREACHABLE):
            return StorageUnavailableError(f"{where} cannot be reached: {text}")
        if not state and isinstance(error, psycopg.OperationalError):
            return StorageUnavailableError(f"{where} cannot be reached: {text}")
        return StorageError(f"{where} failed: {text}", sqlstate=state)


class _Deadlines:
    """Ends calls that take too long: cancels the statement, then shuts its socket.

    A server that is stopped still accepts bytes, so no time limit of the network ends the wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._waiting: dict[int, tuple[float, psycopg.Connection, bool]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, db: psycopg.Connection, seconds: float) -> None:
        """Give the calls on a connection so much time, until `end`."""
        with self._lock:
            self._waiting[id(db)] = (time.monotonic() + seconds, db, False)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, args=(seconds / 4,), name="surehold-pg-limit", daemon=True
                )
                self._thread.start()

    def end(self, db: psycopg.Connection) -> None:
        """The calls have ended."""
        with self._lock:
            self._waiting.pop(id(db), None)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._ended.notify()

    def _watch(self, pause: float) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                now = time.monotonic()
                late = [key for key, (deadline, *_) in self._waiting.items() if deadline < now]
                if not late:
                    self._ended.wait(pause)
                    continue
                ended = []
                for key in late:
                    _, db, cancelled = self._waiting.pop(key)
                    ended.append((db, cancelled))
                    if not cancelled:
                        self._waiting[key] = (now + _CANCEL_SECONDS, db, True)
            for db, cancelled in ended:
                if cancelled:
                    _shut(db)
                else:
                    _cancel(db)


def _configure(db: psycopg.Connection) -> None:
    db.adapters.register_dumper(BinaryValue, BinaryDumper)


def _forget_password(error: Exception) -> None:
    """Drop the settings of the connection, its password too, that an error keeps."""
    if isinstance(error, psycopg.Error):
        error._pgconn = None


def _cancel(db: psycopg.Connection) -> None:
    """Ask the server to stop the statement, so that it does not happen later."""
    with suppress(psycopg.Error, OSError):
        db.cancel_safe(timeout=_CANCEL_SECONDS / 2)


def _shut(db: psycopg.Connection) -> None:
    with suppress(OSError, psycopg.Error, SureholdError):
        copy = socket.socket(fileno=os.dup(db.fileno()))
        try:
            copy.shutdown(socket.SHUT_RDWR)
        finally:
            copy.close()
