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
from surehold.storage.postgres.packing import PackBody, pack_header, unpack_body, unpack_header
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
from surehold.storage.rows import (
    HIDDEN,
    MOST_NOTES,
    head_of_row,
    micros,
    open_row,
    record_keys,
    record_of,
    state_of,
)
from surehold.storage.shared import Head, following, run_number, to_bytes, to_text

_YEAR_2000 = 946_684_800_000_000
"""The microsecond that PostgreSQL counts from, in those since 1970."""
_ID, _TAG, _METADATA = b"i", b"t", b"m"
"""The first bytes of keys."""


def multirange(ranges: Iterable[tuple[int, int]]) -> Multirange[int]:
    """Ranges of seqs, first and last, as PostgreSQL counts them."""
    return Multirange(Range(first, last + 1) for first, last in ranges)


def listed_keys(header: Header, run: int) -> list[bytes]:
    """The keys that a record has rows in `facets` for; its run has the number *run*.

    A note has none for its id, and those of effects, which most records are, none for their kind:
    they are found by walking their run.
    """
    if header.frame != "note":
        return record_keys(header, run)
    if header.kind != MOST_NOTES:
        return record_keys(header, run)[1:]
    if not (header.tags or header.metadata):
        return []
    return [key for key in record_keys(header, run)[1:] if key[:1] in (_TAG, _METADATA)]


def insert_values(
    run_id: str, records: Iterable[Record], pack: PackBody, hidden: Iterable[int] = ()
) -> list[Any]:
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
            pack_header(header, record.text),
            pack(record.body),
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
        keys = listed_keys(header, number)
        if header.seq in gone:
            keys = [key for key in keys if key[:1] == _ID]
        facets += keys
        facet_of += [place] * len(keys)
    return [*columns, facet_of, facets]


def append_values(batch: Batch, records: list[Record], pack: PackBody) -> tuple[Any, ...]:
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
        *insert_values(batch.run_id, records, pack),
        multirange(gaps),
        list(batch.hide),
    )


APPEND_ONE = (
    *(BYTEA, INT8, BYTEA, INT8, BYTEA, BYTEA, INT8, INT8, TIMESTAMPTZ, INT2, INT8),
    *(BYTEA, BYTEA, BYTEA, BYTEA_ARRAY),
)
"""The types of the arguments of `append_one_v1`."""


def append_one_values(batch: Batch, record: Record, pack: PackBody) -> tuple[bytes | None, ...]:
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
        pack_header(header, record.text),
        pack(record.body),
        bytea_array(listed_keys(header, run_number(batch.run_id))),
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


def open_packed(run_id: str, seq: int, digest: Any, stored: Any) -> Header:
    """The header that is stored so for a record."""
    return open_row(run_id, seq, digest, unpack_header(run_id, seq, stored))


def packed_record(run_id: str, seq: int, digest: Any, header: Any, body: Any) -> Record:
    """The record whose header and body are stored so."""
    text = unpack_header(run_id, seq, header)
    return record_of(run_id, seq, digest, text, unpack_body(body))


def head_of(row: tuple[Any, ...]) -> tuple[RunInfo, Header | None]:
    """A head and the checkpoint it describes, if both fit the records."""
    return head_of_row(head_at(row), *row[11:14])
