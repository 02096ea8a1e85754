"""Damage in a PostgreSQL schema: rows that are not what they were.

Pages are the server's business (`data_checksums`); here a row is judged by its own digests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg

from surehold.core.records import Record, gaps_between, open_header
from surehold.errors import CorruptError, UsageError
from surehold.storage.base import Inspection
from surehold.storage.postgres.queries import Queries
from surehold.storage.postgres.rows import insert_values, multirange, packed_record
from surehold.storage.rows import HIDDEN
from surehold.storage.shared import (
    Salvage,
    check_head,
    checked_run,
    first_head,
    rebuilt_head,
    to_bytes,
    unlisted,
)


def inspect_run(db: psycopg.Connection, sql: Queries, run_id: str) -> Inspection | None:
    """Tell which records of a run are whole."""
    rows = db.execute(sql.text(_RECORDS), (to_bytes(run_id),), binary=True).fetchall()
    if not rows:
        ordinal = lost_runs(db, sql).get(run_id)
        if ordinal is None:
            return None
        rows = db.execute(sql.text(_LOST_RECORDS), (ordinal,), binary=True).fetchall()
        return unlisted(_inspection(run_id, rows))
    return _inspection(run_id, rows)


def _inspection(run_id: str, rows: list[tuple[Any, ...]]) -> Inspection:
    seq, digest = rows[0][0], rows[0][1]
    salvage = Salvage(run_id)
    for _, _, found, state, *row in rows:
        if found is not None:
            salvage.hidden |= {found} if state & HIDDEN else set()
            salvage.add(partial(packed_record, run_id, found, *row))
    salvage.ends_at(seq, digest.hex())
    return salvage.inspection(seq)


def lost_runs(db: psycopg.Connection, sql: Queries) -> dict[str, int]:
    """The ordinals of runs that have records and are not in the list of runs."""
    found: dict[str, int] = {}
    for (run,) in db.execute(sql.text(_UNLISTED)).fetchall():
        for digest, text in db.execute(sql.text(_HEADERS), (run,), binary=True).fetchall():
            with suppress(CorruptError):
                found[open_header(text, digest.hex()).run_id] = run
                break
    return found


def _put_back(db: psycopg.Connection, sql: Queries, run_id: str) -> tuple[int, int] | None:
    """List a run that has records again; return its ordinal and newest seq."""
    ordinal = lost_runs(db, sql).get(run_id)
    if ordinal is None:
        return None
    row = db.execute(sql.text(_PUT_BACK), (to_bytes(run_id), ordinal), binary=True).fetchone()
    assert row is not None
    return ordinal, row[0]


def rewrite_run(
    db: psycopg.Connection,
    sql: Queries,
    run_id: str,
    records: Sequence[Record],
    hidden: Collection[int],
    head: int,
) -> None:
    """Make a run just these records; the others move to the table `quarantine`."""
    opened = checked_run(run_id, records)
    run = to_bytes(run_id)
    with db.transaction():
        row = db.execute(sql.text(_LOCK), (run,), binary=True).fetchone()
        row = row or _put_back(db, sql, run_id)
        if row is None:
            raise UsageError(f"there is no run {run_id!r} to repair", run_id=run_id)
        ordinal, seq = row
        check_head(run_id, head, seq)
        kept = [bytes.fromhex(record.header.digest) for record in opened]
        db.execute(sql.text(_ASIDE), (run, ordinal, kept))
        db.execute(sql.text(_CLEAR), (ordinal,))
        if not opened:
            db.execute(sql.delete_run, (run,))
            return
        db.execute(
            sql.text(f"SELECT {{s}}.insert_v1({', '.join(['%s'] * 9)})"),
            (ordinal, *insert_values(run_id, opened, sql.pack, hidden)),
            binary=True,
        )
        new = rebuilt_head(first_head(opened[0].header, ordinal), opened, hidden)
        values = (
            to_bytes(new.name),
            to_bytes(new.status),
            new.seq,
            bytes.fromhex(new.digest),
            new.latest,
            new.checkpoints,
            new.stored,
            new.saved_at,
            multirange(gaps_between(record.header.seq for record in opened)),
            ordinal,
        )
        db.execute(sql.text(_HEAD), values, binary=True)


_RECORDS = """
SELECT u.seq, u.digest, r.seq, r.state, r.digest, r.header, r.body
FROM {s}.runs u LEFT JOIN {s}.records r ON r.run = u.ordinal
WHERE u.run_id = %s AND u.ordinal IS NOT NULL ORDER BY r.seq"""

_LOST_RECORDS = """
SELECT last_value(seq) OVER everything, last_value(digest) OVER everything,
    seq, state, digest, header, body
FROM {s}.records WHERE run = %s
WINDOW everything AS (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
ORDER BY seq"""

_UNLISTED = """
WITH RECURSIVE found AS (
    SELECT min(run) AS run FROM {s}.records UNION ALL
    SELECT (SELECT min(run) FROM {s}.records r WHERE r.run > found.run)
    FROM found WHERE run IS NOT NULL
) SELECT run FROM found WHERE run IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM {s}.runs u WHERE u.ordinal = found.run)"""

_HEADERS = "SELECT digest, header FROM {s}.records WHERE run = %s ORDER BY seq"
"""Those of notes do not name their run where they are packed: one of a checkpoint does."""

_PUT_BACK = """
INSERT INTO {s}.runs(run_id, ordinal, seq, digest, started_at, saved_at)
SELECT %s, run, seq, digest, to_timestamp(at / 1e6), to_timestamp(at / 1e6)
FROM {s}.records WHERE run = %s ORDER BY seq DESC LIMIT 1
ON CONFLICT (run_id) DO UPDATE SET ordinal = EXCLUDED.ordinal, seq = EXCLUDED.seq,
    digest = EXCLUDED.digest, started_at = EXCLUDED.started_at, saved_at = EXCLUDED.saved_at
RETURNING seq"""

_LOCK = """
SELECT ordinal, seq FROM {s}.runs WHERE run_id = %s AND ordinal IS NOT NULL FOR UPDATE"""

_ASIDE = """
INSERT INTO {s}.quarantine(run_id, seq, state, digest, header, body)
SELECT %s, seq, state, digest, header, body FROM {s}.records
WHERE run = %s AND digest <> ALL(%s)"""

_CLEAR = """
WITH gone AS (DELETE FROM {s}.records WHERE run = %s RETURNING ord, state, facets)
DELETE FROM {s}.facets f USING gone g, unnest(g.facets) k
WHERE f.key = k AND f.note = g.state & 1 AND f.ord = g.ord"""

_HEAD = """
UPDATE {s}.runs SET name = %s, status = %s, seq = %s, digest = %s, latest = %s, checkpoints = %s,
    stored = %s, saved_at = %s, erased = %s WHERE ordinal = %s"""
