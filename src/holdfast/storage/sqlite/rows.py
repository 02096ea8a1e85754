"""Rows of the database read back as what they stand for, and not believed unless they fit."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import apsw
import msgspec

from holdfast.core.records import Header, Record, open_header, with_body
from holdfast.errors import CorruptError
from holdfast.storage.base import Lease, Owner, RunInfo, RunQuery
from holdfast.storage.sqlite.index import HIDDEN, NOTE, kind_key

__all__ = [
    "Run",
    "head_of",
    "info_of",
    "lease_of",
    "misplaced",
    "missing",
    "notes_of",
    "one",
    "open_row",
    "record_of",
    "rows",
    "run_of",
    "runs_listing",
]


_Values = tuple[Any, ...] | dict[str, Any]


class Run(msgspec.Struct):
    """The head entry of a run."""

    run_id: str
    pk: int
    seq: int
    digest: str
    name: str
    status: str
    latest: int | None
    """The seq of the newest visible checkpoint in scope ""."""
    checkpoints: int
    stored: int


def rows(db: apsw.Connection, sql: str, values: _Values) -> list[Any]:
    """All rows, so that the statement has ended and holds nothing."""
    return db.execute(sql, values).fetchall()


def one(db: apsw.Connection, sql: str, values: _Values) -> Any:
    """The first row, or None."""
    found = rows(db, sql, values)
    return found[0] if found else None


def run_of(db: apsw.Connection, run_id: str) -> Run | None:
    row = one(
        db,
        "SELECT pk, seq, digest, name, status, latest, checkpoints, stored"
        " FROM runs WHERE run_id = ?",
        (run_id,),
    )
    if row is None:
        return None
    return Run(run_id, *row)


def open_row(run_id: str, seq: int, digest: bytes, text: bytes) -> Header:
    """The header of the record that the row says it is, or a `CorruptError` that names it."""
    try:
        header = open_header(text, digest.hex())
    except CorruptError as error:
        raise _damaged(run_id, seq, error) from error
    if (header.run_id, header.seq) != (run_id, seq):
        raise misplaced(run_id, seq)
    return header


def record_of(run_id: str, seq: int, digest: bytes, text: bytes, body: bytes | None) -> Record:
    """The record that the rows say it is, or a `CorruptError` that names it."""
    header = open_row(run_id, seq, digest, text)
    if body is None:
        raise CorruptError(
            f"the body of record {seq} of run {run_id!r} is missing", run_id=run_id, seq=seq
        )
    return with_body(header, text, body)


def missing(run_id: str, seq: int) -> CorruptError:
    return CorruptError(f"record {seq} of run {run_id!r} is missing", run_id=run_id, seq=seq)


def misplaced(run_id: str, seq: int) -> CorruptError:
    return CorruptError(
        f"another record stands at seq {seq} of run {run_id!r}", run_id=run_id, seq=seq
    )


def _damaged(run_id: str, seq: int, error: CorruptError) -> CorruptError:
    return CorruptError(
        f"record {seq} of run {run_id!r} is damaged: {error.message}",
        hint=error.hint,
        run_id=run_id,
        seq=seq,
    )


def runs_listing(query: RunQuery) -> tuple[str, dict[str, Any]]:
    """*query* in SQL, a page of which is asked for with `:bound` and `:size`."""
    index, conditions = "", ["u.pk < :bound"]
    values: dict[str, Any] = {}
    for column, value, test in (
        ("run_id", query.run_id, "u.run_id = :run_id"),
        ("name", query.name, "u.name = :name"),
        ("status", query.status, "u.status = :status"),
        ("not_status", query.not_status, "u.status <> :not_status"),
    ):
        if value is not None:
            conditions.append(test)
            values[column] = value
    unfinished = query.not_status == "completed" or query.status not in (None, "completed")
    if query.run_id is None and query.name is not None and unfinished:
        # Written out, so that SQLite sees that the index holds all that is wanted.
        conditions.append("u.status <> 'completed'")
        index = "INDEXED BY runs_to_resume"
    elif query.run_id is None and query.name is not None:
        index = "INDEXED BY runs_by_name"
    elif query.run_id is None and query.status is not None:
        index = "INDEXED BY runs_by_status"
    return _RUNS.format(index=index, conditions=" AND ".join(conditions)), values


_RUNS = """
SELECT u.run_id, u.pk, u.seq, u.digest, u.name, u.status, u.checkpoints, u.stored, u.started_at,
    u.saved_at, u.latest, h.digest, c.digest, CAST(c.header AS BLOB)
FROM runs u {index}
    LEFT JOIN records h ON h.run = u.pk AND h.seq = u.seq
    LEFT JOIN records c ON c.run = u.pk AND c.seq = u.latest
WHERE {conditions} ORDER BY u.pk DESC LIMIT :size"""


def info_of(
    run_id: str,
    ordinal: int,
    seq: int,
    digest: str,
    name: str,
    status: str,
    checkpoints: int,
    stored: int,
    started_at: str,
    saved_at: str,
    latest: int | None,
    head: bytes | None,
    latest_digest: bytes | None,
    latest_text: bytes | None,
) -> tuple[RunInfo, Header | None]:
    """A row of `runs_listing`: the head and the newest checkpoint, if its parts fit together."""
    if head is None or head.hex() != digest:
        raise misplaced(run_id, seq)
    newest: Header | None = None
    if latest is not None:
        if latest_digest is None or latest_text is None:
            raise missing(run_id, latest)
        newest = open_row(run_id, latest, latest_digest, latest_text)
        if (newest.name, newest.status, newest.scope) != (name, status, ""):
            raise misplaced(run_id, latest)
    info = RunInfo(
        run_id=run_id,
        name=name,
        ordinal=ordinal,
        seq=seq,
        digest=digest,
        checkpoints=checkpoints,
        stored=stored,
        step=newest.step if newest else 0,
        node=newest.node if newest else None,
        kind=newest.kind if newest else "routine",
        status=status,
        started_at=datetime.fromisoformat(started_at),
        saved_at=datetime.fromisoformat(saved_at),
    )
    return info, newest


_HEAD, _ = runs_listing(RunQuery(run_id=""))


def head_of(db: apsw.Connection, run_id: str) -> tuple[RunInfo, Header | None] | None:
    """The head of a run and its newest visible checkpoint in scope ""."""
    row = one(db, _HEAD, {"run_id": run_id, "bound": 1 << 62, "size": 1})
    return None if row is None else info_of(*row)


def notes_of(db: apsw.Connection, run_id: str, kinds: Collection[str]) -> list[Header]:
    """The visible notes of these kinds in a run, oldest first."""
    run = run_of(db, run_id)
    if run is None:
        return []
    keys = [kind_key(run.pk, kind) for kind in kinds]
    found = rows(db, _NOTES.format(keys=",".join("?" * len(keys))), tuple(keys))
    return [open_row(run_id, seq, digest, text) for seq, digest, text in found]


_NOTES = f"""
SELECT r.seq, r.digest, CAST(r.header AS BLOB)
FROM marks m CROSS JOIN records r ON r.ord = m.ord
WHERE m.key IN ({{keys}}) AND m.note = {NOTE} AND r.state & {HIDDEN} = 0 ORDER BY r.seq"""


def lease_of(db: apsw.Connection, run_id: str) -> Lease | None:
    row = one(db, "SELECT epoch, owner, expires_at FROM leases WHERE run_id = ?", (run_id,))
    if row is None:
        return None
    epoch, owner, expires_at = row
    holder = None if owner is None else msgspec.json.decode(owner, type=Owner)
    return Lease(run_id, epoch, holder, expires_at)
