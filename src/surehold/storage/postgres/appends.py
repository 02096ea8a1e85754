"""The function of the schema that stores a batch, and its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from surehold.core.policy import change_of
from surehold.core.records import Record
from surehold.lazy import extra
from surehold.storage.base import Batch
from surehold.storage.shared import to_bytes

with extra("postgres", "PostgreSQL storages need psycopg"):
    import psycopg

    from surehold.storage.postgres.queries import Queries
    from surehold.storage.postgres.rows import (
        append_one_values,
        append_values,
        change_values,
        later_change_values,
    )


class AppendCall(msgspec.Struct, frozen=True):
    """One call of a function that appends, made with a cursor."""

    run_id: bytes
    sql: bytes
    values: Sequence[Any]

    def execute(self, db: psycopg.Connection) -> bool:
        """Call it; True if the batch was stored."""
        row = psycopg.RawCursor(db).execute(self.sql, self.values, binary=True).fetchone()
        return bool(row and row[0])


def append_call(sql: Queries, batch: Batch, records: list[Record]) -> AppendCall:
    """The call that stores *batch*, whose records are *records*."""
    run_id, change = to_bytes(batch.run_id), change_of(records)
    if change is not None:
        values = (*change_values(change), *append_values(batch, records, sql.pack))
        later = later_change_values(change)
        if change.submitted is not None and not change.ended and later[0]:
            return AppendCall(run_id, sql.append_queued_and, (*values, *later))
        return AppendCall(run_id, sql.append_queued, values)
    if is_one(batch, records):
        one = sql.append_one
        return AppendCall(
            run_id, one.sql, one.for_cursor(append_one_values(batch, records[0], sql.pack))
        )
    return AppendCall(run_id, sql.append, append_values(batch, records, sql.pack))


def is_one(batch: Batch, records: list[Record]) -> bool:
    """True if `append_one_v1` can store the batch, unless it changes a queue."""
    return len(records) == 1 and records[0].header.prev != "" and not (batch.hide or batch.erased)
