"""The statement of most saves, without a cursor and, without a pooler, prepared.

With psycopg's cursors and adapters a save takes about a sixth longer. So its arguments are bytes in
PostgreSQL's binary form, which libpq sends as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from struct import Struct
from typing import Any

import psycopg
from psycopg.abc import PyFormat
from psycopg.adapt import Dumper
from psycopg.generators import execute
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGresult

BYTEA, INT8, INT2, TIMESTAMPTZ, BYTEA_ARRAY = 17, 20, 21, 1184, 1001
"""The numbers of types, the same on every server."""
TRUE = b"\1"
int2, int8 = Struct("!h").pack, Struct("!q").pack

_ARRAY = Struct("!iiIii").pack
"""Dimensions, no nulls, the type of the items, how many, and the number of the first."""
_PREPARE_AFTER = 5
"""Calls on a connection after which a statement is worth the two round trips of preparing it."""
_WHEN_ASKED = 1 << 30
_TUPLES, _DONE, _BINARY = ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, Format.BINARY
_SQLSTATE, _NOT_PREPARED = DiagnosticField.SQLSTATE, b"26000"


def bytea_array(items: Sequence[bytes]) -> bytes:
    """Byte strings as one ``bytea[]``."""
    data = _ARRAY(1, 0, BYTEA, len(items), 1)
    for item in items:
        data += len(item).to_bytes(4) + item
    return data


class Statement:
    """A statement that returns one value, and takes arguments of these *types*.

    The server prepares it as *name*, which must be unique within the database.
    """

    def __init__(self, name: str, sql: bytes, types: Sequence[int]) -> None:
        self.name = name.encode()
        self.sql = sql
        self.types = types
        self.formats = [_BINARY] * len(types)

    def for_cursor(self, values: Sequence[bytes | None]) -> list[BinaryValue | None]:
        """The arguments as a cursor takes them."""
        pairs = zip(self.types, values, strict=True)
        return [None if value is None else BinaryValue(kind, value) for kind, value in pairs]


class BinaryValue:
    """A value in its binary form, for a cursor."""

    __slots__ = ("data", "oid")

    def __init__(self, oid: int, data: bytes) -> None:
        self.oid = oid
        self.data = data


class BinaryDumper(Dumper):
    """Tells psycopg how to send an `BinaryValue`; one for each type."""

    format = _BINARY

    def get_key(self, obj: BinaryValue, format: PyFormat) -> Any:
        """A key that tells the dumpers of the types apart."""
        return (BinaryValue, obj.oid)

    def upgrade(self, obj: BinaryValue, format: PyFormat) -> BinaryDumper:
        """The dumper for the type of *obj*."""
        made = BinaryDumper(BinaryValue)
        made.oid = obj.oid
        return made

    def dump(self, obj: BinaryValue) -> bytes:
        """The bytes to send."""
        return obj.data


class PooledConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that can call a `Statement`; one thread uses it at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls: dict[bytes, int] = {}
        self._ready: set[bytes] = set()
        """The names of the statements that are prepared."""

    def call(self, statement: Statement, values: Sequence[bytes | None]) -> bytes | None:
        """Execute *statement*, and give its value in the binary form."""
        pgconn = self.pgconn
        if statement.name in self._ready or self._prepare(statement):
            pgconn.send_query_prepared(statement.name, values, statement.formats, _BINARY)
            result = self._answer()
            if result.status == _TUPLES:
                return result.get_value(0, 0)
            if result.error_field(_SQLSTATE) != _NOT_PREPARED:
                raise _error_of(result)
            # It was prepared on another connection: a pooler stands between after all.
            self._ready.clear()
        pgconn.send_query_params(statement.sql, values, statement.types, statement.formats, _BINARY)
        result = self._answer()
        if result.status != _TUPLES:
            raise _error_of(result)
        return result.get_value(0, 0)

    def _prepare(self, statement: Statement) -> bool:
        """Prepare *statement* if it is called often and no pooler stands between."""
        calls = self._calls[statement.name] = self._calls.get(statement.name, 0) + 1
        if calls != _PREPARE_AFTER or not self.prepares:
            return False
        self.pgconn.send_prepare(statement.name, statement.sql, statement.types)
        if self._answer().status == _DONE:
            self._ready.add(statement.name)
        return statement.name in self._ready

    @cached_property
    def prepares(self) -> bool:
        """True if cursors may prepare statements: no pooler stands between."""
        direct = is_direct(self)
        # psycopg prepares nothing without a threshold, and with this one only when asked to.
        self.prepare_threshold = _WHEN_ASKED if direct else None
        return direct

    def _answer(self) -> PGresult:
        """The answer to what was just sent."""
        results: list[PGresult] = self.wait(execute(self.pgconn))
        return results[0]


def _error_of(result: PGresult) -> psycopg.Error:
    """The error of *result*; without a code it is libpq's: the connection is lost."""
    error = psycopg.errors.error_from_result(result)
    return error if error.sqlstate else psycopg.OperationalError(str(error))


def is_direct(db: psycopg.Connection[Any]) -> bool:
    """False behind a pooler, where the next statement may run on another connection."""
    row: tuple[Any, ...] | None = db.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and bool(row[0] == db.info.backend_pid)
