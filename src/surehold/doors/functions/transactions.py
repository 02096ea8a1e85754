"""Steps in a transaction of the user's own database.

The outcome of such a step is a row beside the rows that the step writes, in the same commit. If the
process dies before the journal has the outcome, the next start finds the row: the call happened
exactly when its rows are there, and nobody need be asked.

The row comes first, so that a second execution of the same call waits for the commit of the first
one and then takes its outcome.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

from surehold.core.values import decode, encode
from surehold.errors import UsageError

_OUTCOMES = "surehold_outcomes"
"""The table of outcomes, in the schema that the connection works in."""
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {_OUTCOMES}"
    " (key TEXT PRIMARY KEY, outcome TEXT, made_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
)
_CLAIM = f"INSERT INTO {_OUTCOMES}(key) VALUES (:key) ON CONFLICT DO NOTHING"
_READ = f"SELECT outcome FROM {_OUTCOMES} WHERE key = :key"
_WRITE = f"UPDATE {_OUTCOMES} SET outcome = :outcome WHERE key = :key"
_KNOWN = (
    "a SQLAlchemy engine or sessionmaker, a psycopg_pool pool, or a function that opens a"
    " connection of sqlite3 or psycopg"
)
_Medium = Literal["sqlalchemy", "psycopg", "sqlite3"]


def in_transaction(
    function: Callable[..., Any], source: Any, write: Callable[[Any], Any]
) -> Callable[..., Any]:
    """*function* in a transaction of *source*, whose connection is its first argument.

    The result takes `idempotency_key`, the key of the outcome; with an empty one (outside a run)
    no outcome is kept. *write* makes a result that cannot be stored one that can.
    """
    _check_parameters(function)
    opened = _Awaited(source) if inspect.iscoroutinefunction(function) else _Blocking(source)

    if isinstance(opened, _Awaited):

        async def awaited(*args: Any, idempotency_key: str = "", **kwargs: Any) -> Any:
            async with opened.begun() as (connection, ask):
                if idempotency_key and not (await ask(_CLAIM, key=idempotency_key))[0]:
                    return _outcome(await ask(_READ, key=idempotency_key))
                value = await function(connection, *args, **kwargs)
                if idempotency_key:
                    text = _text(value, write)
                    _check_written(await ask(_WRITE, key=idempotency_key, outcome=text), function)
                return value

        return _shown(awaited, function)

    def plain(*args: Any, idempotency_key: str = "", **kwargs: Any) -> Any:
        with opened.begun() as (connection, ask):
            if idempotency_key and not ask(_CLAIM, key=idempotency_key)[0]:
                return _outcome(ask(_READ, key=idempotency_key))
            value = function(connection, *args, **kwargs)
            if idempotency_key:
                text = _text(value, write)
                _check_written(ask(_WRITE, key=idempotency_key, outcome=text), function)
            return value

    return _shown(plain, function)


def _check_parameters(function: Callable[..., Any]) -> None:
    names = [*inspect.signature(function).parameters]
    if not names:
        raise UsageError(
            f"{getattr(function, '__qualname__', function)} takes no connection",
            hint="a step with transaction= gets the connection as its first argument",
        )
    if "idempotency_key" in names:
        raise UsageError(
            "a step with transaction= needs no idempotency_key",
            hint="leave the parameter out: its rows are written once",
        )


def _shown(made: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """*made* with the name and parameters of *function*: a key, and no connection."""
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined]
    signature = inspect.signature(function)
    rest = [*signature.parameters.values()][1:]
    key = inspect.Parameter("idempotency_key", inspect.Parameter.KEYWORD_ONLY, default="")
    at = next((i for i, one in enumerate(rest) if one.kind is one.VAR_KEYWORD), len(rest))
    taken = [*rest[:at], key, *rest[at:]]
    made.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    return made


def _text(value: Any, write: Callable[[Any], Any]) -> str:
    return encode(write(value)).decode()


def _outcome(answer: tuple[int, Any]) -> Any:
    (text,) = answer[1]
    if text is None:
        raise UsageError(
            "the step had ended its transaction itself, and its outcome is not known",
            hint="leave commit and rollback to the step: raise an exception to roll back",
        )
    return decode(text.encode())


def _check_written(answer: tuple[int, Any], function: Callable[..., Any]) -> None:
    if answer[0] != 1:
        raise UsageError(
            f"{function.__qualname__} rolled its transaction back and returned",
            hint="raise an exception to roll back",
        )


def _medium_of(module: str) -> _Medium | None:
    root = module.partition(".")[0]
    if root in ("sqlalchemy", "sqlite3"):
        return root  # type: ignore[return-value]
    return "psycopg" if root in ("psycopg", "psycopg_pool") else None


_BINDS = {"sqlite3": ":{}", "psycopg": "%({})s"}


@functools.cache
def _statement(medium: str, statement: str) -> Any:
    """*statement* as the driver wants it."""
    if medium == "sqlalchemy":
        from sqlalchemy import text

        return text(statement)
    for name in ("key", "outcome"):
        statement = statement.replace(f":{name}", _BINDS[medium].format(name))
    return statement


class _Source:
    """The source of the transactions of a step."""

    awaited = False

    def __init__(self, source: Any) -> None:
        medium = _medium_of(type(source).__module__)
        if medium in (None, "sqlite3") and (medium or not callable(source)):
            raise UsageError(f"transaction is {source!r:.80}", hint=f"give {_KNOWN}")
        if isinstance(source, type) or hasattr(source, "cursor"):
            raise UsageError(
                "transaction is one connection, which threads cannot share",
                hint=f"give {_KNOWN}",
            )
        if medium is not None and type(source).__name__.lower().startswith("async") != self.awaited:
            raise UsageError(
                f"transaction is a {type(source).__name__}, and the step"
                f" {'is' if self.awaited else 'is not'} async",
                hint="make both async, or neither",
            )
        self.source = source
        self.medium = medium
        """None if *source* is a function that opens a connection."""
        self.ready = False
        """True if the table of outcomes was seen."""

    def dialect(self, connection: Any) -> _Medium:
        """The driver of a connection."""
        medium = self.medium or _medium_of(type(connection).__module__)
        if medium is None:
            raise UsageError(
                f"transaction opens a {type(connection).__qualname__}", hint=f"give {_KNOWN}"
            )
        return medium


class _Blocking(_Source):
    @contextmanager
    def begun(self) -> Iterator[tuple[Any, Callable[..., tuple[int, Any]]]]:
        """A transaction, and a function that asks in it."""
        if not self.ready:
            with self._transaction() as connection:
                self._ask(connection, _CREATE)
            self.ready = True
        with self._transaction() as connection:
            yield connection, functools.partial(self._ask, connection)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        if self.medium == "sqlalchemy":
            with self.source.begin() as connection:
                yield connection
        elif self.medium == "psycopg":
            with self.source.connection() as connection, connection.transaction():
                yield connection
        else:
            connection = self.source()
            try:
                if self.dialect(connection) == "psycopg":
                    with connection.transaction():
                        yield connection
                else:
                    with _sqlite(connection):
                        yield connection
            finally:
                connection.close()

    def _ask(self, connection: Any, statement: str, **values: str) -> tuple[int, Any]:
        made = connection.execute(_statement(self.dialect(connection), statement), values)
        return made.rowcount, made.fetchone() if statement is _READ else None


@contextmanager
def _sqlite(connection: Any) -> Iterator[None]:
    """A transaction of a `sqlite3` connection, which must not be ended inside."""
    if getattr(connection, "autocommit", None) is False:  # Python 3.12 and newer
        connection.autocommit = True
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        if not connection.in_transaction:
            raise UsageError(
                "the step ended its transaction itself",
                hint="leave commit and rollback to the step: raise an exception to roll back",
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class _Awaited(_Source):
    awaited = True

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[tuple[Any, Callable[..., Any]]]:
        """See `_Blocking.begun`."""
        if not self.ready:
            async with self._transaction() as connection:
                await self._ask(connection, _CREATE)
            self.ready = True
        async with self._transaction() as connection:
            yield connection, functools.partial(self._ask, connection)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        if self.medium == "sqlalchemy":
            async with self.source.begin() as connection:
                yield connection
        elif self.medium == "psycopg":
            async with self.source.connection() as connection, connection.transaction():
                yield connection
        else:
            connection = await self.source()
            try:
                if self.dialect(connection) != "psycopg":
                    raise UsageError(
                        "an async step needs an async connection", hint=f"give {_KNOWN}"
                    )
                async with connection.transaction():
                    yield connection
            finally:
                await connection.close()

    async def _ask(self, connection: Any, statement: str, **values: str) -> tuple[int, Any]:
        made = await connection.execute(_statement(self.dialect(connection), statement), values)
        if statement is not _READ:
            return made.rowcount, None
        found = made.fetchone()
        return made.rowcount, await found if inspect.isawaitable(found) else found
