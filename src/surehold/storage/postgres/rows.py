"""Rows of the tables as values, and values as arguments of the schema's functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Any

from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from surehold.core.policy import QueueChange
from surehold.core.records import Header, Record
from surehold.storage.base import Batch, RunInfo
from surehold.storage.postgres.statement import (
    BYTEA,
    BYTEA_ARRAY,
    INT2,
    INT8,
    TIMESTAMPTZ,
    bytea_array,
    int2,
    int8,
)
from surehold.storage.rows import HIDDEN, head_of_row, micros, record_keys, state_of
from surehold.storage.shared import Head, following, run_number, to_bytes, to_text

_YEAR_2000 = 946_684_800_000_000
"""The microsecond that PostgreSQL counts from, in those since 1970."""


def multirange(ranges: Iterable[tuple[int, int]]) -> Multirange[int]:
    """Ranges of seqs, first and last, as PostgreSQL counts them."""
    return Multirange(Range(first, last + 1) for first, last in ranges)


def insert_values(run_id: str, records: Iterable[Record], hidden: Iterable[int] = ()) -> list[Any]:
    """Arrays for `insert_v1`: one element per record, and the facets of all of them."""
    gone = set(hidden)
    columns: list[list[Any]] = [[], [], [], [], [], []]
    facet_of: list[int] = []
    facets: list[bytes] = []
    number = run_number(run_id)
    for place, record in enumerate(records, 1):
        header = record.header
        state = state_of(header) | (HIDDEN if header.seq in gone else 0)
        row = (
            header.seq,
            state,
            micros(header.saved_at),
            bytes.fromhex(header.digest),
            record.text,
            record.body,
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        keys = record_keys(header, number)
        keys = keys[:1] if header.seq in gone else keys
        facets += keys
        facet_of += [place] * len(keys)
    return [*columns, facet_of, facets]


def append_values(batch: Batch, records: list[Record]) -> tuple[Any, ...]:
    """The arguments of `append_v1`."""
    base, prev, gaps, added = following(batch, records)
    return (
        to_bytes(batch.run_id),
        base,
        None if prev is None else bytes.fromhex(prev),
        batch.epoch,
        to_bytes(added.name if added else ""),
        to_bytes(added.status if added else "running"),
        added.latest if added else None,
        added.checkpoints if added else 0,
        added.stored if added else 0,
        added.started_at if added else None,
        added.saved_at if added else None,
        *insert_values(batch.run_id, records),
        multirange(gaps),
        list(batch.hide),
    )


APPEND_ONE = (
    *(BYTEA, INT8, BYTEA, INT8, BYTEA, BYTEA, INT8, INT8, TIMESTAMPTZ, INT2, INT8),
    *(BYTEA, BYTEA, BYTEA, BYTEA_ARRAY),
)
"""The types of the arguments of `append_one_v1`."""


def append_one_values(batch: Batch, record: Record) -> tuple[bytes | None, ...]:
    """The arguments of `append_one_v1`, in the binary form."""
    header = record.header
    is_note, at = header.frame == "note", micros(header.saved_at)
    return (
        to_bytes(batch.run_id),
        int8(header.seq - 1),
        bytes.fromhex(header.prev),
        None if batch.epoch is None else int8(batch.epoch),
        to_bytes(header.name),
        to_bytes(header.status),
        None if is_note or header.scope else int8(header.seq),
        int8(0 if is_note else 1),
        int8(at - _YEAR_2000),
        int2(state_of(header)),
        int8(at),
        bytes.fromhex(header.digest),
        record.text,
        record.body,
        bytea_array(record_keys(header, run_number(batch.run_id))),
    )


def head_at(row: tuple[Any, ...]) -> Head:
    """The head of a row of `Queries.run` or `Queries.runs`, as it is stored."""
    run_id, ordinal, started_at, saved_at, seq, digest, name, status = row[:8]
    return Head(
        to_text(run_id),
        ordinal,
        started_at.astimezone(UTC),
        saved_at.astimezone(UTC),
        seq,
        digest.hex(),
        to_text(name),
        to_text(status),
        *row[8:11],
    )


def change_values(change: QueueChange) -> tuple[Any, ...]:
    """The arguments of `change_queue_v1`, before those of the append."""
    given = change.submitted
    if change.ended or given is None:
        kind, reason = later_change_values(change)
        return (kind, b"", b"", 0, b"", None, reason)
    return (
        "queued",
        to_bytes(given.queue),
        to_bytes(given.target),
        given.priority,
        to_bytes(given.key),
        given.due,
        b"",
    )


def later_change_values(change: QueueChange) -> tuple[str, bytes]:
    """The kind and the reason of what changes an entry beside a submission."""
    kinds = (
        ("ended", change.ended),
        ("dead", change.dead is not None),
        ("cancelled", change.cancelled),
        ("answered", change.answered),
    )
    kind = next((name for name, is_so in kinds if is_so), "")
    return kind, to_bytes(change.dead or "")


def head_of(row: tuple[Any, ...]) -> tuple[RunInfo, Header | None]:
    """A head and the checkpoint it describes, if both fit the records."""
    return head_of_row(head_at(row), *row[11:14])
