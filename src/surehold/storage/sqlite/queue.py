"""The entries of queues in a SQLite file, in a transaction of the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from surehold.core.policy import QueueEntry, QueueSettings
from surehold.core.records import Lease
from surehold.storage.queueing import EntryQuery, WorkerInfo
from surehold.storage.shared import LeasedQueueTable
from surehold.storage.sqlite.rows import lease_of, one, rows
from surehold.storage.sqlite.writes import put_lease

_COLUMNS = (
    *("run_id", "queue", "target", "state", "priority", "key", "rank", "due", "failures"),
    *("reason", "woken", "cancelled"),
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM entries"
_PUT = f"INSERT OR REPLACE INTO entries VALUES ({', '.join(['?'] * len(_COLUMNS))})"
_AT_ONCE = 500
"""Entries that become ready in one transaction."""

_EACH_QUEUE = """
WITH RECURSIVE each(queue) AS (
    SELECT min(queue) FROM entries
    UNION ALL SELECT (SELECT min(queue) FROM entries e WHERE e.queue > each.queue)
    FROM each WHERE queue IS NOT NULL
) SELECT queue FROM each WHERE queue IS NOT NULL"""
"""The queues, each found by one search of an index that begins with them."""


class SQLiteQueues(LeasedQueueTable):
    """The tables `entries`, `queues` and `workers`."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def lease(self, run_id: str) -> Lease | None:
        return lease_of(self._db, run_id)

    def put_lease(self, lease: Lease) -> None:
        put_lease(self._db, lease)

    def due(self, now: float) -> list[QueueEntry]:
        return self._find(f"state = 'waiting' AND due <= ? ORDER BY due LIMIT {_AT_ONCE}", (now,))

    def next_due(self) -> float | None:
        found = one(self._db, "SELECT min(due) FROM entries WHERE state = 'waiting'", ())
        return None if found is None else found[0]

    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        found = rows(self._db, "SELECT name, settings FROM queues", ())
        return {name: msgspec.json.decode(text, type=QueueSettings) for name, text in found}

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        text = msgspec.json.encode(settings).decode()
        self._db.execute(
            "INSERT INTO queues(name, settings) VALUES (?, ?)"
            " ON CONFLICT(name) DO UPDATE SET settings = excluded.settings",
            (queue, text),
        )

    def running(self, queue: str) -> Mapping[str, int]:
        sql = "SELECT key, count(*) FROM entries WHERE queue = ? AND state = 'running' GROUP BY key"
        return dict(rows(self._db, sql, (queue,)))

    def starts(self, queue: str) -> list[float]:
        found = one(self._db, "SELECT starts FROM queues WHERE name = ?", (queue,))
        return msgspec.json.decode(found[0], type=list[float]) if found else []

    def set_starts(self, queue: str, starts: list[float]) -> None:
        text = msgspec.json.encode(starts).decode()
        self._db.execute("UPDATE queues SET starts = ? WHERE name = ?", (text, queue))

    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        without = f" AND key NOT IN ({', '.join(['?'] * len(full))})" if full else ""
        found: list[QueueEntry] = []
        for target in targets:
            found += self._find(
                f"queue = ? AND target = ? AND state = 'ready'{without}"
                " ORDER BY priority DESC, rank LIMIT ?",
                (queue, target, *full, limit),
            )
        return found

    def get(self, run_id: str) -> QueueEntry | None:
        found = self._find("run_id = ?", (run_id,))
        return found[0] if found else None

    def put(self, run_id: str, entry: QueueEntry | None) -> None:
        if entry is None:
            self._db.execute("DELETE FROM entries WHERE run_id = ?", (run_id,))
        else:
            self._db.execute(_PUT, [getattr(entry, name) for name in _COLUMNS])

    def newest_rank(self, queue: str, key: str) -> float | None:
        sql = "SELECT max(rank) FROM entries WHERE queue = ? AND key = ? AND state = 'ready'"
        found = one(self._db, sql, (queue, key))
        return None if found is None else found[0]

    def find(self, query: EntryQuery) -> list[QueueEntry]:
        wanted, values = ["1"], list[Any]()
        for name in ("queue", "state", "cancelled"):
            value = getattr(query, name)
            if value is not None:
                wanted.append(f"{name} = ?")
                values.append(value)
        if query.run_ids is not None:
            wanted.append(f"run_id IN ({', '.join(['?'] * len(query.run_ids))})")
            values += query.run_ids
        elif query.queue is None and query.state is not None:
            wanted.append(f"queue IN ({_EACH_QUEUE})")
        values.append(-1 if query.limit is None else query.limit)
        order = "ORDER BY queue, state, priority DESC, rank LIMIT ?"
        return self._find(f"{' AND '.join(wanted)} {order}", values)

    def counts(self) -> Mapping[tuple[str, str], int]:
        sql = "SELECT queue, state, count(*) FROM entries GROUP BY queue, state"
        return {(queue, state): count for queue, state, count in rows(self._db, sql, ())}

    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        self._db.execute("DELETE FROM workers WHERE id = ? OR until <= ?", (worker.id, now))
        if ttl > 0:
            text = msgspec.json.encode(msgspec.structs.replace(worker, seen=now)).decode()
            self._db.execute("INSERT INTO workers VALUES (?, ?, ?)", (worker.id, text, now + ttl))

    def workers(self, now: float) -> list[WorkerInfo]:
        found = rows(self._db, "SELECT facts FROM workers WHERE until > ?", (now,))
        return [msgspec.json.decode(text, type=WorkerInfo) for (text,) in found]

    def _find(self, where: str, values: Sequence[Any]) -> list[QueueEntry]:
        found = rows(self._db, f"{_SELECT} WHERE {where}", tuple(values))
        return [
            QueueEntry(
                run_id=row[0],
                queue=row[1],
                target=row[2],
                state=row[3],
                priority=row[4],
                key=row[5],
                rank=row[6],
                due=row[7],
                failures=row[8],
                reason=row[9],
                woken=bool(row[10]),
                cancelled=bool(row[11]),
            )
            for row in found
        ]
