"""What changes the database, each within a transaction that the caller holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from holdfast.core.records import Header, Record, ranges_of
from holdfast.errors import ConflictError, CorruptError, UsageError
from holdfast.storage.base import Batch, Lease
from holdfast.storage.sqlite.index import HIDDEN, NOTE, id_key, marks_of, micros, state_of
from holdfast.storage.sqlite.rows import Run, lease_of, one, open_row, rows, run_of

__all__ = ["append_batch", "delete_run", "drop", "insert_record", "put_lease"]

_ROWS = 500


def append_batch(db: apsw.Connection, batch: Batch, records: list[Record]) -> ConflictError | None:
    """Store one batch, or tell why not and change nothing."""
    run = run_of(db, batch.run_id)
    if run is not None and records and _are_there(db, run, records):
        return None
    if (why := _refusal(db, batch, records, run)) is not None:
        head = run.seq if run else 0
        seq = records[0].header.seq if records else head + 1
        return ConflictError(
            f"run {batch.run_id!r}: {why}", run_id=batch.run_id, seq=seq, head=head
        )
    if records:
        run = run or _begin(db, records[0].header)
        for first, last in batch.gaps(run.seq):
            _remember_erased(db, run.pk, first, last)
        _extend(db, run, records)
    if run is not None and batch.hide:
        hide = set(batch.hide)
        _hide(db, run, hide)
        _save(db, run, hide)
    return None


def _are_there(db: apsw.Connection, run: Run, records: list[Record]) -> bool:
    """Whether this is a retry of what had succeeded."""
    first, last = records[0].header.seq, records[-1].header.seq
    if first > run.seq:
        return False
    there = rows(
        db,
        "SELECT seq, digest FROM records WHERE run = ? AND seq BETWEEN ? AND ? ORDER BY seq",
        (run.pk, first, last),
    )
    return there == [(r.header.seq, bytes.fromhex(r.header.digest)) for r in records]


def _refusal(
    db: apsw.Connection, batch: Batch, records: list[Record], run: Run | None
) -> str | None:
    seq, digest = (run.seq, run.digest) if run else (0, "")
    if records and not batch.follows(records[0].header, seq, digest):
        first = records[0].header.seq
        if first == seq + 1:
            return f"seq {first} was sealed on another record than {seq}"
        return f"seq {first} does not follow its newest, {seq}"
    if batch.epoch is not None:
        lease = lease_of(db, batch.run_id)
        if lease is not None and batch.epoch < lease.epoch:
            return f"epoch {batch.epoch} was followed by {lease.epoch}"
    return None


def _begin(db: apsw.Connection, first: Header) -> Run:
    moment = first.saved_at.isoformat()
    db.execute(
        "INSERT INTO runs(run_id, name, status, seq, digest, checkpoints, stored, started_at,"
        " saved_at) VALUES (?, ?, 'running', 0, '', 0, 0, ?, ?)",
        (first.run_id, first.name, moment, moment),
    )
    pk = db.last_insert_rowid()
    return Run(first.run_id, pk, 0, "", first.name, "running", None, 0, 0)


def _extend(db: apsw.Connection, run: Run, records: list[Record]) -> None:
    """Insert records after the head of a run, and move the head to the last of them."""
    name, status = run.name, run.status
    for record in records:
        header, state = record.header, state_of(record.header)
        insert_record(db, run.pk, record, state)
        run.checkpoints += not state & NOTE
        run.stored += len(record.body)
        if state == 0:
            run.latest, run.name, run.status = header.seq, header.name, header.status
    last = records[-1].header
    if run.latest is None:
        run.name = last.name
    db.execute(
        "UPDATE runs SET seq = ?, digest = ?, latest = ?, checkpoints = ?, stored = ?,"
        " saved_at = ? WHERE pk = ?",
        (
            last.seq,
            last.digest,
            run.latest,
            run.checkpoints,
            run.stored,
            last.saved_at.isoformat(),
            run.pk,
        ),
    )
    run.seq, run.digest = last.seq, last.digest
    if (name, status) != (run.name, run.status):
        _save_name_and_status(db, run)


def insert_record(
    db: apsw.Connection,
    run: int,
    record: Record,
    state: int,
    *,
    marks: Iterable[bytes] | None = None,
    place: int | None = None,
) -> None:
    """Insert one record, at a *place* among all that is free, or at the end."""
    header = record.header
    db.execute(
        "INSERT INTO records(ord, run, seq, state, at, digest, header)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            place,
            run,
            header.seq,
            state,
            micros(header.saved_at),
            bytes.fromhex(header.digest),
            record.text.decode(),
        ),
    )
    place, note = db.last_insert_rowid(), state & NOTE
    db.execute("INSERT INTO bodies VALUES (?, ?)", (place, record.body))
    db.executemany(
        "INSERT INTO marks VALUES (?, ?, ?)",
        [(key, note, place) for key in (marks_of(header, run) if marks is None else marks)],
    )


def _save_name_and_status(db: apsw.Connection, run: Run) -> None:
    # Apart from the rest, because it moves the run in three indexes and seldom happens.
    db.execute("UPDATE runs SET name = ?, status = ? WHERE pk = ?", (run.name, run.status, run.pk))


def _save(db: apsw.Connection, run: Run, gone: set[int]) -> None:
    """Store the head entry of a run of which *gone* were hidden or erased."""
    db.execute(
        "UPDATE runs SET checkpoints = ?, stored = ? WHERE pk = ?",
        (run.checkpoints, run.stored, run.pk),
    )
    if run.latest not in gone:
        return
    newest = one(db, f"{_NEWEST} AND state = 0 ORDER BY seq DESC LIMIT 1", (run.pk,))
    seq, digest, text = newest or one(db, f"{_NEWEST} AND seq = ?", (run.pk, run.seq))
    header = open_row(run.run_id, seq, digest, text)
    run.latest, run.name = (seq if newest else None), header.name
    run.status = header.status if newest else "running"
    db.execute("UPDATE runs SET latest = ? WHERE pk = ?", (run.latest, run.pk))
    _save_name_and_status(db, run)


_NEWEST = "SELECT seq, digest, CAST(header AS BLOB) FROM records WHERE run = ?"


def drop(db: apsw.Connection, run: Run, hide: set[int], erase: set[int]) -> int:
    """Hide some records of a run and erase others; returns how many were affected."""
    if run.seq in erase:
        raise UsageError(
            f"record {run.seq} is the newest of run {run.run_id!r} and cannot be erased",
            hint="hide it, or delete the whole run",
            run_id=run.run_id,
            seq=run.seq,
        )
    hidden = _hide(db, run, hide - erase)
    erased = _erase(db, run, erase)
    if hidden or erased:
        _save(db, run, hide | erase)
    return hidden + erased


class _Row(msgspec.Struct):
    """A record that is to go."""

    ord: int
    seq: int
    state: int
    digest: bytes
    text: bytes
    stored: int | None = None


def _rows(db: apsw.Connection, run: Run, seqs: Iterable[int], sql: str) -> list[_Row]:
    known = sorted(seq for seq in seqs if 0 < seq <= run.seq)
    found = (one(db, f"{sql} r.seq = ?", (run.pk, seq)) for seq in known)
    return [_Row(*row) for row in found if row is not None]


_HIDDEN = """
SELECT r.ord, r.seq, r.state, r.digest, CAST(r.header AS BLOB) FROM records r WHERE r.run = ? AND"""

_DROPPED = """
SELECT r.ord, r.seq, r.state, r.digest, CAST(r.header AS BLOB), length(b.body)
FROM records r LEFT JOIN bodies b ON b.ord = r.ord WHERE r.run = ? AND"""


def _hide(db: apsw.Connection, run: Run, seqs: set[int]) -> int:
    gone = [row for row in _rows(db, run, seqs, _HIDDEN) if not row.state & HIDDEN]
    _unmark(db, run, gone, hidden=True)
    db.executemany(
        f"UPDATE records SET state = state | {HIDDEN} WHERE ord = ?", [(row.ord,) for row in gone]
    )
    run.checkpoints -= sum(not row.state & (NOTE | HIDDEN) for row in gone)
    return len(gone)


def _erase(db: apsw.Connection, run: Run, seqs: set[int]) -> int:
    gone = _rows(db, run, seqs, _DROPPED)
    _remove(db, run, gone)
    run.checkpoints -= sum(not row.state & (NOTE | HIDDEN) for row in gone)
    run.stored -= sum(row.stored or 0 for row in gone)
    for first, last in ranges_of(row.seq for row in gone):
        _remember_erased(db, run.pk, first, last)
    return len(gone)


def _remove(db: apsw.Connection, run: Run, gone: list[_Row]) -> None:
    _unmark(db, run, gone, hidden=False)
    places = [(row.ord,) for row in gone]
    db.executemany("DELETE FROM records WHERE ord = ?", places)
    db.executemany("DELETE FROM bodies WHERE ord = ?", places)


def _unmark(db: apsw.Connection, run: Run, gone: list[_Row], *, hidden: bool) -> None:
    """Take away the marks of records; those that are only *hidden* keep that of their id."""
    keep = 1 if hidden else 0
    for row in gone:
        try:
            header = open_row(run.run_id, row.seq, row.digest, row.text)
        except CorruptError:
            # What it was marked with cannot be told any more, so all marks are looked through.
            ids = f" AND substr(key, 1, 1) <> x'{id_key('').hex()}'" if hidden else ""
            db.execute(f"DELETE FROM marks WHERE ord = ?{ids}", (row.ord,))
            continue
        marks = list(marks_of(header, run.pk))[keep:]
        db.executemany(
            "DELETE FROM marks WHERE key = ? AND note = ? AND ord = ?",
            [(key, row.state & NOTE, row.ord) for key in marks],
        )


def _remember_erased(db: apsw.Connection, run: int, first: int, last: int) -> None:
    touching = (run, last + 1, first - 1)
    low, high = one(
        db,
        "SELECT min(first), max(last) FROM erased WHERE run = ? AND first <= ? AND last >= ?",
        touching,
    )
    db.execute("DELETE FROM erased WHERE run = ? AND first <= ? AND last >= ?", touching)
    merged = (run, min(first, low or first), max(last, high or last))
    db.execute("INSERT INTO erased VALUES (?, ?, ?)", merged)


def delete_run(db: apsw.Connection, run: Run) -> int:
    """Delete a whole run; its lease stays, so that a writer that lost it is still refused."""
    count = 0
    while some := rows(db, f"{_DROPPED} 1 LIMIT {_ROWS}", (run.pk,)):
        _remove(db, run, [_Row(*row) for row in some])
        count += len(some)
    db.execute("DELETE FROM erased WHERE run = ?", (run.pk,))
    db.execute("DELETE FROM runs WHERE pk = ?", (run.pk,))
    return count


def put_lease(db: apsw.Connection, lease: Lease) -> None:
    owner: Any = None if lease.owner is None else msgspec.json.encode(lease.owner).decode()
    db.execute(
        "INSERT INTO leases(run_id, epoch, expires_at, owner) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(run_id) DO UPDATE SET epoch = excluded.epoch,"
        " expires_at = excluded.expires_at, owner = excluded.owner",
        (lease.run_id, lease.epoch, lease.expires_at, owner),
    )
