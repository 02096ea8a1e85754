"""Heads, notes and leases read from the database."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import apsw
import msgspec

from surehold.core.records import OPEN_FROM, Header
from surehold.storage.base import Lease, Owner, RunInfo, RunQuery, RunTally
from surehold.storage.rows import HIDDEN, NOTE, conditions_of_runs, head_of_row, kind_key, open_row
from surehold.storage.shared import SAVED_BY_HAND, Head, Sparing, run_info

Values = tuple[Any, ...] | dict[str, Any]
_HEAD = (
    "u.run_id, u.pk, u.started_at, u.saved_at, u.seq, u.digest, u.name, u.status, u.latest,"
    " u.checkpoints, u.stored"
)


def rows(db: apsw.Connection, sql: str, values: Values) -> list[Any]:
    """All rows, so that the statement has ended and holds nothing."""
    return db.execute(sql, values).fetchall()


def one(db: apsw.Connection, sql: str, values: Values) -> Any:
    """The first row, or None."""
    found = rows(db, sql, values)
    return found[0] if found else None


def head_of(db: apsw.Connection, run_id: str) -> tuple[Head, int] | None:
    """The head of a run, its ordinal being its key, and the epoch of its newest lease."""
    found: list[Any] = db.execute(_HEAD_OF, (run_id,)).fetchall()
    return (_head(found[0]), found[0][11] or 0) if found else None


_HEAD_OF = f"""
SELECT {_HEAD}, (SELECT epoch FROM leases l WHERE l.run_id = u.run_id)
FROM runs u WHERE u.run_id = ?"""


def _head(row: Any) -> Head:
    moment = datetime.fromisoformat
    return Head(row[0], row[1], moment(row[2]), moment(row[3]), *row[4:11])


def runs_listing(query: RunQuery) -> tuple[str, dict[str, Any]]:
    """*query* in SQL; `infos` reads a page of it with `:bound` and `:size`."""
    index = ""
    conditions, values = conditions_of_runs(query, ":{}")
    conditions.append("u.pk < :bound")
    if query.saved_before is not None:
        conditions.append("u.saved_at < :saved_before")
        values["saved_before"] = query.saved_before.astimezone(UTC).isoformat()
    unfinished = query.open or query.not_status == "completed"
    unfinished = unfinished or query.status not in (None, "completed")
    if query.open:
        conditions.append(
            f"(u.seq > u.latest OR c.header IS NULL OR instr(c.header, '{OPEN_FROM}'))"
        )
        conditions.append(_BEGUN)
    if query.run_id is None and unfinished and (query.name is not None or query.status is None):
        # Written out, so that SQLite sees that the index holds all that is wanted.
        conditions.append("u.status <> 'completed'")
        index = "INDEXED BY runs_to_resume"
    elif query.run_id is None and query.name is not None:
        index = "INDEXED BY runs_by_name"
    elif query.run_id is None and query.status is not None:
        index = "INDEXED BY runs_by_status"
    return _RUNS.format(index=index, conditions=" AND ".join(conditions)), values


_BEGUN = (
    "(EXISTS (SELECT 1 FROM leases l WHERE l.run_id = u.run_id)"
    " OR NOT EXISTS (SELECT 1 FROM entries e WHERE e.run_id = u.run_id))"
)

_RUNS = f"""
SELECT {_HEAD}, CAST(h.digest AS BLOB), CAST(c.digest AS BLOB), CAST(c.header AS BLOB)
FROM runs u {{index}}
    LEFT JOIN records h ON h.run = u.pk AND h.seq = u.seq
    LEFT JOIN records c ON c.run = u.pk AND c.seq = u.latest
WHERE {{conditions}} ORDER BY u.pk DESC LIMIT :size"""


def infos(
    db: apsw.Connection, sql: str, values: dict[str, Any]
) -> list[tuple[RunInfo, Header | None]]:
    """Heads, each with the newest visible checkpoint of the run itself.

    A damaged run is a `CorruptError` where a run or a name is asked for; in a listing of all its
    head is listed alone.
    """
    found: list[tuple[RunInfo, Header | None]] = []
    for row in rows(db, sql, values):
        head = _head(row)
        whole: tuple[RunInfo, Header | None] | None = None
        with Sparing(head.run_id, strict="run_id" in values or "name" in values):
            whole = head_of_row(head, *row[11:])
        found.append(whole or (run_info(head, None), None))
    return found


def tally(db: apsw.Connection, now: float, most: int) -> RunTally:
    """All runs, counted by one statement."""
    found = rows(db, _TALLY, {"now": now})
    return RunTally(
        {(status, hold): count for status, hold, count, _ in found},
        {hold: msgspec.json.decode(keys)[:most] for _, hold, _, keys in found if keys != "[]"},
    )


_TALLY = f"""
SELECT status, '', count(*), '[]' FROM runs WHERE status <> 'running' GROUP BY status
UNION ALL
SELECT 'running', hold, count(*),
    json_group_array(pk ORDER BY pk DESC) FILTER (WHERE hold IN ('held', 'ended', 'dead'))
FROM (
    SELECT u.pk, CASE
        WHEN l.owner IS NOT NULL AND l.expires_at > :now THEN 'held'
        WHEN e.state IN ('ready', 'waiting', 'dead') THEN e.state
        WHEN instr((SELECT header FROM records WHERE run = u.pk AND seq = u.latest),
            '{SAVED_BY_HAND}') THEN 'manager'
        WHEN l.epoch > 0 THEN 'ended' ELSE '' END AS hold
    FROM runs u LEFT JOIN leases l ON l.run_id = u.run_id LEFT JOIN entries e ON e.run_id = u.run_id
    WHERE u.status = 'running'
) GROUP BY hold"""
"""Runs that are not stored as running are counted by an index alone."""


_INFO, _ = runs_listing(RunQuery(run_id=""))


def info_of(db: apsw.Connection, run_id: str) -> tuple[RunInfo, Header | None] | None:
    """The head of one run with its newest visible checkpoint."""
    found = infos(db, _INFO, {"run_id": run_id, "bound": 1 << 62, "size": 1})
    return found[0] if found else None


def notes_of(db: apsw.Connection, run_id: str, kinds: Collection[str]) -> list[Header]:
    """The visible notes of these kinds in a run, oldest first."""
    found = one(db, "SELECT pk FROM runs WHERE run_id = ?", (run_id,))
    if found is None:
        return []
    keys = tuple(kind_key(found[0], kind) for kind in kinds)
    page = rows(db, _NOTES.format(keys=",".join("?" * len(keys))), keys)
    return [open_row(run_id, seq, digest, text) for seq, digest, text in page]


_NOTES = f"""
SELECT r.seq, CAST(r.digest AS BLOB), CAST(r.header AS BLOB)
FROM marks m CROSS JOIN records r ON r.ord = m.ord
WHERE m.key IN ({{keys}}) AND m.note = {NOTE} AND r.state & {HIDDEN} = 0 ORDER BY r.seq"""


def lease_of(db: apsw.Connection, run_id: str) -> Lease | None:
    """The newest lease of a run."""
    row = one(db, "SELECT epoch, owner, expires_at FROM leases WHERE run_id = ?", (run_id,))
    if row is None:
        return None
    epoch, owner, expires_at = row
    holder = None if owner is None else msgspec.json.decode(owner, type=Owner)
    return Lease(run_id, epoch, holder, expires_at)
