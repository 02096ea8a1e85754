"""Records and heads as arguments and answers of the scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from surehold.core.records import Header, Record, gaps_between
from surehold.errors import CorruptError
from surehold.storage.base import Batch, RunInfo
from surehold.storage.redis.keys import netstrings, zone_of
from surehold.storage.rows import head_of_row, micros, open_row, record_keys, record_of
from surehold.storage.shared import Head, following, missing, run_number, to_bytes, to_text

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIELDS = 11


def append_values(batch: Batch, records: Sequence[Record], ordinal: bytes) -> list[Any]:
    """The arguments of `APPEND`; *ordinal* is for a run that begins, "" to take one."""
    base, prev, gaps, added = following(batch, records)
    return [
        base,
        b"?" if prev is None else prev.encode(),
        b"" if batch.epoch is None else batch.epoch,
        ordinal,
        *_described(added),
        added.checkpoints if added else 0,
        added.stored if added else 0,
        micros(added.started_at) if added else b"",
        micros(added.saved_at) if added else b"",
        len(records),
        len(gaps),
        len(batch.hide),
        *_rows(batch.run_id, records),
        *(seq for gap in gaps for seq in gap),
        *batch.hide,
    ]


def rewrite_values(
    head: int, moment: str, new: Head | None, records: Sequence[Record], hidden: Iterable[int]
) -> list[Any]:
    """The arguments of `REWRITE`; *new* is the head of the rewritten run."""
    gaps = gaps_between(record.header.seq for record in records)
    hides = sorted(hidden)
    return [
        head,
        moment,
        *_described(new),
        new.checkpoints if new else 0,
        new.stored if new else 0,
        micros(new.saved_at) if new else b"",
        new.seq if new else 0,
        new.digest if new else b"",
        len(records),
        len(gaps),
        len(hides),
        *_rows(new.run_id if new else "", records),
        *(seq for gap in gaps for seq in gap),
        *hides,
    ]


def head_at(run_id: str, row: Sequence[Any]) -> Head:
    """The head of an answer of `HEAD`, as it is stored."""
    ordinal, seq, digest, name, status, latest, checkpoints, stored, started, saved, _ = row[
        :_FIELDS
    ]
    return Head(
        run_id,
        int(ordinal),
        _moment(started),
        _moment(saved),
        int(seq),
        digest.decode(),
        to_text(name),
        to_text(status),
        int(latest) if latest else None,
        int(checkpoints),
        int(stored),
    )


def head_of(run_id: str, row: Sequence[Any]) -> tuple[RunInfo, Header | None]:
    """A head and the checkpoint it describes, if both fit the records."""
    head = head_at(run_id, row)
    newest, shown = row[_FIELDS], row[_FIELDS + 1]
    its_digest = None if newest is None else _sealed(run_id, head.seq, newest)[0]
    if shown is None:
        return head_of_row(head, its_digest, None, None)
    return head_of_row(head, its_digest, *_sealed(run_id, head.latest or 0, shown))


def header_of(run_id: str, seq: int, row: bytes | None) -> Header:
    """The header that a value of `headers` claims to be."""
    if row is None:
        raise missing(run_id, seq)
    return open_row(run_id, seq, *_sealed(run_id, seq, row))


def record_at(run_id: str, seq: int, row: bytes | None, body: bytes | None) -> Record:
    """The record that values of `headers` and `bodies` claim to be."""
    if row is None:
        raise missing(run_id, seq)
    return record_of(run_id, seq, *_sealed(run_id, seq, row), body)


def _described(head: Head | None) -> tuple[bytes, bytes, Any]:
    if head is None:
        return b"", b"running", b""
    latest = b"" if head.latest is None else head.latest
    return to_bytes(head.name), to_bytes(head.status), latest


def _rows(run_id: str, records: Iterable[Record]) -> Iterable[Any]:
    number = run_number(run_id)
    for record in records:
        header = record.header
        keys = record_keys(header, number)[1:]
        known = [to_bytes(part) for part in (header.name, header.status, header.id)]
        yield header.seq
        yield zone_of(header)
        yield header.digest
        yield record.text
        yield record.body
        yield netstrings([*known, *keys])


def _sealed(run_id: str, seq: int, row: bytes) -> tuple[bytes, bytes]:
    """The digest and the text of a value of `headers`."""
    digest, _, text = row.partition(b" ")
    try:
        return bytes.fromhex(digest.decode("ascii")), text
    except ValueError:
        raise CorruptError(
            f"record {seq} of run {run_id!r} is damaged: it has no digest",
            run_id=run_id,
            seq=seq,
        ) from None


def _moment(value: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=int(value))
