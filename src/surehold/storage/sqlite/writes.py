"""Changes to the database, each within a transaction that the caller holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import apsw
import msgspec

from surehold.core.policy import change_of
from surehold.core.records import Header, Record, ranges_of
from surehold.errors import ConflictError, CorruptError
from surehold.storage.base import Batch, Lease
from surehold.storage.rows import (
    HIDDEN,
    NESTED,
    NOTE,
    id_key,
    micros,
    open_row,
    record_keys,
    state_of,
)
from surehold.storage.shared import (
    Head,
    QueueTable,
    after_append,
    after_removal,
    apply_change,
    cannot_erase,
    decide_append,
    first_head,
    may_be_retry,
)
from surehold.storage.sqlite.rows import head_of, lease_of, one, rows

_ROWS = 500


def next_record(batch: Batch) -> Record | None:
    """The record of a batch that `append_next` can store: one, and nothing else."""
    if len(batch.records) != 1 or batch.hide:
        return None
    record = batch.records[0].verified()
    header = record.header
    if header.run_id != batch.run_id:
        return None
    # Most records of these kinds change no queue either.
    rare = header.frame == "note" or header.status == "completed"
    return None if rare and change_of((record,)) is not None else record


def append_next(
    run: int | None, record: Record, epoch: int | None, cursor: apsw.Cursor
) -> int | None:
    """Store a record that follows the head of *run*, or begins a run; return its key.

    If it does neither under the newest lease, nothing is changed, and `append_batch` says why. A
    run whose name or status changes is left to it as well: that moves the run in indexes.
    """
    header = record.header
    note = header.frame == "note"
    state = (NOTE if note else 0) | (NESTED if header.scope else 0)
    saved_at, stored = header.saved_at.isoformat(), len(record.body)
    if run is None:
        if header.seq != 1 or header.prev:
            return None
        status, latest = ("running", None) if state else (header.status, 1)
        values = [header.run_id, header.name, status, header.digest, latest, not note]
        values += (stored, saved_at, saved_at)
        statements = _BEGINS
    else:
        values = [header.seq, header.digest, stored, saved_at, not note if state else header.seq]
        values += (run, header.run_id, header.seq - 1, header.prev)
        if not state:
            values += (header.name, header.status)
        statements = _MOVES_BESIDE if state else _MOVES
    if epoch is not None:
        values += (header.run_id, epoch)
    cursor.execute(statements[epoch is not None], values)
    if not cursor.connection.changes():
        return None
    key = cursor.connection.last_insert_rowid() if run is None else run
    insert_record(cursor, key, record, state)
    return key


_UNFENCED = " AND NOT EXISTS (SELECT 1 FROM leases WHERE run_id = ? AND epoch > ?)"
_MOVE = "UPDATE runs SET seq = ?, digest = ?, stored = stored + ?, saved_at = ?, "
_FOLLOWS = " WHERE pk = ? AND run_id = ? AND seq = ? AND digest = ? AND latest IS NOT NULL"
_ALIKE = " AND name = ? AND status = ?"
_MOVES, _MOVES_BESIDE, _BEGINS = (
    (statement, statement + _UNFENCED)
    for statement in (
        f"{_MOVE}latest = ?, checkpoints = checkpoints + 1{_FOLLOWS}{_ALIKE}",
        f"{_MOVE}checkpoints = checkpoints + ?{_FOLLOWS}",
        "INSERT OR IGNORE INTO runs(run_id, name, status, seq, digest, latest, checkpoints, stored,"
        " started_at, saved_at) SELECT ?, ?, ?, 1, ?, ?, ?, ?, ?, ? WHERE 1",
    )
)
"""Statements for a writer without a lease, and under one that must be the newest."""


def append_batch(
    db: apsw.Connection, batch: Batch, records: list[Record], queues: QueueTable
) -> ConflictError | int | None:
    """Store one batch and its effect on *queues*, or say why not, changing nothing.

    Returns the key of the run, None if it has none.
    """
    found = head_of(db, batch.run_id)
    head = None
    if found is not None:
        head, epoch = found
    elif batch.epoch is not None:
        lease = lease_of(db, batch.run_id)
        epoch = lease.epoch if lease else 0
    else:
        epoch = 0
    decision = decide_append(
        batch,
        records,
        seq=head.seq if head else 0,
        digest=head.digest if head else "",
        epoch=epoch,
        stored=_stored(db, head, records) if head and may_be_retry(records, head.seq) else (),
    )
    if isinstance(decision, ConflictError):
        return decision
    if records and decision == "store":
        seq = head.seq if head else 0
        new = after_append(head or first_head(records[0].header, 0), records)
        new = _begun(db, new) if head is None else new
        if new.seq != seq + len(records):
            for first, last in batch.gaps(seq):
                _remember_erased(db, new.ordinal, first, last)
        for record in records:
            insert_record(db, new.ordinal, record, state_of(record.header))
        if head is not None:
            put_head(db, head, new)
        head = new
        change = change_of(records)
        if change is not None:
            apply_change(queues, batch.run_id, change, now=time.time())
    if head is None:
        return None
    if batch.hide and decision == "store":
        _drop(db, head, set(batch.hide), set())
    return head.ordinal


def _stored(
    db: apsw.Connection, head: Head, records: Sequence[Record]
) -> Iterable[tuple[int, str]]:
    """Seq and digest of what is there at the seqs of *records*."""
    seqs = (head.ordinal, records[0].header.seq, records[-1].header.seq)
    return ((seq, digest.hex()) for seq, digest in rows(db, _DIGESTS, seqs))


_DIGESTS = """
SELECT seq, CAST(digest AS BLOB) FROM records WHERE run = ? AND seq BETWEEN ? AND ? ORDER BY seq"""


def _begun(db: apsw.Connection, head: Head) -> Head:
    """Store the head of a new run; returns it with its key."""
    db.execute(
        "INSERT INTO runs(run_id, name, status, seq, digest, latest, checkpoints, stored,"
        " started_at, saved_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(head.run_id, head.name, head.status, head.seq, head.digest, head.latest),
            *(head.checkpoints, head.stored),
            *(head.started_at.isoformat(), head.saved_at.isoformat()),
        ),
    )
    return msgspec.structs.replace(head, ordinal=db.last_insert_rowid())


def insert_record(
    db: apsw.Connection | apsw.Cursor,
    run: int,
    record: Record,
    state: int,
    *,
    place: int | None = None,
) -> None:
    """Insert one record, at a *place* among all that is free, or at the end."""
    header, note = record.header, state & NOTE
    marks = record_keys(header, run)
    if state & HIDDEN:
        del marks[1:]
    at, digest = micros(header.saved_at), bytes.fromhex(header.digest)
    values = [place, run, header.seq, state, at, digest, record.text.decode(), record.body]
    for key in marks:
        values += (key, note)
    db.execute(_insert(len(marks)), values)


@cache
def _insert(marks: int) -> str:
    # The body is stored at the record's rowid, and marks have none: it stays the last one.
    return (
        "INSERT INTO records(ord, run, seq, state, at, digest, header)"
        " VALUES (?, ?, ?, ?, ?, ?, ?);"
        "INSERT INTO bodies VALUES (last_insert_rowid(), ?);"
        f"INSERT INTO marks VALUES {','.join(['(?, ?, last_insert_rowid())'] * marks)}"
    )


def put_head(db: apsw.Connection, old: Head, new: Head) -> None:
    """Store the head of a run in the place of the *old* one."""
    db.execute(
        "UPDATE runs SET seq = ?, digest = ?, latest = ?, checkpoints = ?, stored = ?,"
        " saved_at = ? WHERE pk = ?",
        (
            *(new.seq, new.digest, new.latest, new.checkpoints, new.stored),
            *(new.saved_at.isoformat(), new.ordinal),
        ),
    )
    if (old.name, old.status) != (new.name, new.status):
        # Apart from the rest, because it moves the run in three indexes and seldom happens.
        named = (new.name, new.status, new.ordinal)
        db.execute("UPDATE runs SET name = ?, status = ? WHERE pk = ?", named)


def drop(db: apsw.Connection, head: Head, hide: set[int], erase: set[int]) -> int:
    """Hide some records of a run and erase others; returns how many were affected."""
    if head.seq in erase:
        raise cannot_erase(head.run_id, head.seq)
    return _drop(db, head, hide - erase, erase)


def _drop(db: apsw.Connection, head: Head, hide: set[int], erase: set[int]) -> int:
    hidden = [row for row in _rows(db, head, hide) if not row.state & HIDDEN]
    erased = _rows(db, head, erase)
    _unmark(db, head, hidden, keep_id=True)
    db.executemany(
        f"UPDATE records SET state = state | {HIDDEN} WHERE ord = ?", [(row.ord,) for row in hidden]
    )
    _remove(db, head, erased)
    for first, last in ranges_of(row.seq for row in erased):
        _remember_erased(db, head.ordinal, first, last)
    if hidden or erased:
        gone = [*hidden, *erased]
        new = after_removal(
            head,
            {row.seq for row in gone},
            lambda: _look(db, head),
            checkpoints=sum(not row.state & (NOTE | HIDDEN) for row in gone),
            stored=sum(row.stored or 0 for row in erased),
        )
        put_head(db, head, new)
    return len(hidden) + len(erased)


def _look(db: apsw.Connection, head: Head) -> tuple[Header | None, Header]:
    """The newest visible checkpoint of a run itself, and its newest record."""
    newest = one(db, f"{_NEWEST} AND state = 0 ORDER BY seq DESC LIMIT 1", (head.ordinal,))
    last = newest or one(db, f"{_NEWEST} AND seq = ?", (head.ordinal, head.seq))
    header = open_row(head.run_id, *last)
    return (header if newest else None), header


_NEWEST = "SELECT seq, CAST(digest AS BLOB), CAST(header AS BLOB) FROM records WHERE run = ?"


class _Row(msgspec.Struct):
    """A record that is to go."""

    ord: int
    seq: int
    state: int
    digest: bytes
    text: bytes
    stored: int | None


def _rows(db: apsw.Connection, head: Head, seqs: Iterable[int]) -> list[_Row]:
    known = sorted(seq for seq in seqs if 0 < seq <= head.seq)
    found = (one(db, f"{_DROPPED} r.seq = ?", (head.ordinal, seq)) for seq in known)
    return [_Row(*row) for row in found if row is not None]


_DROPPED = """
SELECT r.ord, r.seq, r.state, CAST(r.digest AS BLOB), CAST(r.header AS BLOB), length(b.body)
FROM records r LEFT JOIN bodies b ON b.ord = r.ord WHERE r.run = ? AND"""


def _remove(db: apsw.Connection, head: Head, gone: list[_Row]) -> None:
    _unmark(db, head, gone, keep_id=False)
    places = [(row.ord,) for row in gone]
    db.executemany("DELETE FROM records WHERE ord = ?", places)
    db.executemany("DELETE FROM bodies WHERE ord = ?", places)


def _unmark(db: apsw.Connection, head: Head, gone: list[_Row], *, keep_id: bool) -> None:
    """Remove the marks of records; hidden records keep the mark of their id."""
    for row in gone:
        try:
            header = open_row(head.run_id, row.seq, row.digest, row.text)
        except CorruptError:
            # Its marks cannot be told any more, so all marks are looked through.
            ids = f" AND substr(key, 1, 1) <> x'{id_key('').hex()}'" if keep_id else ""
            db.execute(f"DELETE FROM marks WHERE ord = ?{ids}", (row.ord,))
            continue
        marks = record_keys(header, head.ordinal)[keep_id:]
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


def delete_run(db: apsw.Connection, head: Head) -> int:
    """Delete a whole run; its lease stays, so that a stale writer is still refused."""
    count = 0
    while some := rows(db, f"{_DROPPED} 1 LIMIT {_ROWS}", (head.ordinal,)):
        _remove(db, head, [_Row(*row) for row in some])
        count += len(some)
    db.execute("DELETE FROM erased WHERE run = ?", (head.ordinal,))
    db.execute("DELETE FROM runs WHERE pk = ?", (head.ordinal,))
    return count


def put_lease(db: apsw.Connection, lease: Lease) -> None:
    """Make this the newest lease of its run."""
    owner: Any = None if lease.owner is None else msgspec.json.encode(lease.owner).decode()
    db.execute(
        "INSERT INTO leases(run_id, epoch, expires_at, owner) VALUES (?, ?, ?, ?)"
        " ON CONFLICT(run_id) DO UPDATE SET epoch = excluded.epoch,"
        " expires_at = excluded.expires_at, owner = excluded.owner",
        (lease.run_id, lease.epoch, lease.expires_at, owner),
    )
