"""Rows of the tables as values, and values as arguments of the schema's functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC
from functools import lru_cache
from struct import Struct
from typing import Any

from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from holdfast.core.policy import QueueChange
from holdfast.core.records import Header, Record
from holdfast.storage.base import Batch, RunInfo
from holdfast.storage.shared import Head, after_append, first_head
from holdfast.storage.sql import HIDDEN, head_of_row, micros, record_keys, state_of


def to_bytes(text: str) -> bytes:
    """Text as it is stored: any Python string, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Decode the output of `to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def run_number(run_id: str) -> int:
    """A number for the run in its facets' keys, known before it has an ordinal."""
    return int.from_bytes(hashlib.sha256(to_bytes(run_id)).digest()[:8])


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
    base = 0
    prev: bytes | None = b""
    gaps: list[tuple[int, int]] = []
    added = None
    if records:
        first = records[0].header
        base, prev = first.seq - 1, bytes.fromhex(first.prev)
        erased = next((one for one, last in batch.erased if last == base), None)
        if erased is not None:
            # The digest of an erased record is not known, so what follows a gap is believed.
            base, prev = erased - 1, None
        gaps = batch.gaps(base)
        added = after_append(first_head(first, 0), records)
    return (
        to_bytes(batch.run_id),
        base,
        prev,
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


def append_one_values(batch: Batch, record: Record) -> tuple[Any, ...]:
    """The arguments of `append_one_v1`."""
    header = record.header
    is_latest = header.frame != "note" and not header.scope
    return (
        to_bytes(batch.run_id),
        header.seq - 1,
        bytes.fromhex(header.prev),
        batch.epoch,
        to_bytes(header.name),
        to_bytes(header.status),
        header.seq if is_latest else None,
        0 if header.frame == "note" else 1,
        header.saved_at,
        state_of(header),
        micros(header.saved_at),
        bytes.fromhex(header.digest),
        record.text,
        record.body,
        ByteaArray(record_keys(header, run_number(batch.run_id))),
    )


class ByteaArray:
    """Byte strings that are sent as one ``bytea[]`` in its binary form."""

    __slots__ = ("data",)

    def __init__(self, items: list[bytes]) -> None:
        parts = [_ARRAY.pack(1, 0, _BYTEA, len(items), 1)]
        for item in items:
            parts.append(len(item).to_bytes(4))
            parts.append(item)
        self.data = b"".join(parts)


_ARRAY = Struct("!iiIii")
"""Dimensions, no nulls, the type of the items, how many, and the number of the first."""
_BYTEA, _BYTEA_ARRAY = 17, 1001


class ByteaArrayDumper(Dumper):
    """Tells psycopg how to send a `ByteaArray`."""

    format = Format.BINARY
    oid = _BYTEA_ARRAY

    def dump(self, obj: ByteaArray) -> bytes:
        """The bytes to send."""
        return obj.data


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
    """The first arguments of `append_queued_v1`."""
    given = change.submitted
    if change.ended or given is None:
        kinds = (
            ("ended", change.ended),
            ("dead", change.dead is not None),
            ("cancelled", change.cancelled),
            ("answered", change.answered),
        )
        kind = next(name for name, is_so in kinds if is_so)
        return (kind, b"", b"", 0, b"", None, to_bytes(change.dead or ""))
    return (
        "queued",
        to_bytes(given.queue),
        to_bytes(given.target),
        given.priority,
        to_bytes(given.key),
        given.due,
        b"",
    )


def head_of(row: tuple[Any, ...]) -> tuple[RunInfo, Header | None]:
    """A head and the checkpoint it describes, if both fit the records."""
    return head_of_row(head_at(row), *row[11:14])
