"""The entries of queues in a PostgreSQL schema: columns of the runs' own rows.

An append updates the row of its run anyway, so that an entry costs no row of its own, and a claim
takes the lease where it marks the entry. Rows that another transaction is looking at are passed
over. All times are the database's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psycopg

from surehold.core.policy import QueueEntry, QueueSettings, order_of
from surehold.core.records import Lease, Owner
from surehold.storage.postgres.queries import Queries
from surehold.storage.postgres.tallies import QUEUES
from surehold.storage.process import is_dead
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, StaleClaim, WorkerInfo
from surehold.storage.shared import QueueTable, to_bytes, to_text

_COLUMNS = (
    "run_id, queue, target, queue_state, priority, queue_key, rank, due, failures, reason, woken,"
    " cancelled"
)
_NOW = "(SELECT extract(epoch FROM clock_timestamp())::float8)"
"""The server's time, asked for once a statement: with a volatile function in its place an index
of times is not searched but read."""
_NOT_AWAITED = "(SELECT set_config('synchronous_commit', 'off', true)) = 'off'"
"""True; the statement's commit is then durable with the next one, and does not wait for it."""
_AT_ONCE = 500
"""Entries that become ready in one transaction."""

_PROMOTE = f"""
UPDATE {{s}}.runs SET queue_state = 'ready', rank = due, due = NULL WHERE run_id IN (
    SELECT run_id FROM {{s}}.runs WHERE queue_state = 'waiting' AND due <= {_NOW}
    ORDER BY due LIMIT {_AT_ONCE} FOR UPDATE SKIP LOCKED)"""

_READY = f"""
SELECT r.* FROM unnest(%(targets)s::bytea[]) t(name) CROSS JOIN LATERAL (
    SELECT {_COLUMNS} FROM {{s}}.runs u
    WHERE u.queue = %(queue)s AND u.target = t.name AND u.queue_state = 'ready'
        AND NOT (u.queue_key = ANY(%(full)s))
    ORDER BY u.priority DESC, u.rank, u.ordinal LIMIT %(limit)s FOR UPDATE SKIP LOCKED) r"""

_TAKE = f"""
UPDATE {{s}}.runs SET queue_state = 'running', woken = false, epoch = epoch + 1,
    owner = %(owner)s, lease_until = {_NOW} + %(ttl)s, token = NULL
WHERE run_id = ANY(%(runs)s) AND queue_state = 'ready'
    AND (owner IS NULL OR lease_until <= {_NOW} OR owner = ANY(%(dead)s))
RETURNING epoch, {_COLUMNS}"""

_CLAIM = f"""
WITH limited AS MATERIALIZED (
    SELECT FROM {{s}}.queues WHERE name = ANY(%(queues)s) AND limited
), picked AS MATERIALIZED (
    SELECT r.* FROM unnest(%(queues)s::bytea[]) q(name), unnest(%(targets)s::bytea[]) t(name),
    LATERAL (
        SELECT run_id, priority, rank, ordinal, owner IS NULL OR lease_until <= {_NOW} AS free
        FROM {{s}}.runs u
        WHERE u.queue = q.name AND u.target = t.name AND u.queue_state = 'ready'
        ORDER BY u.priority DESC, u.rank, u.ordinal LIMIT %(limit)s FOR UPDATE SKIP LOCKED
    ) r WHERE NOT EXISTS (SELECT FROM limited)
    ORDER BY r.priority DESC, r.rank, r.ordinal LIMIT %(limit)s
), taken AS (
    UPDATE {{s}}.runs SET queue_state = 'running', woken = false, epoch = epoch + 1,
        owner = %(owner)s, lease_until = {_NOW} + %(ttl)s, token = NULL
    WHERE run_id IN (SELECT run_id FROM picked WHERE free) RETURNING epoch, {_COLUMNS}
)
SELECT EXISTS (SELECT FROM limited) OR EXISTS (SELECT FROM picked), taken.*
FROM (SELECT) one LEFT JOIN taken ON true"""

_DEFER = """
UPDATE {s}.runs SET queue_state = 'waiting', due = lease_until
WHERE run_id = ANY(%s) AND queue_state = 'ready'"""

_RENEW = f"""
UPDATE {{s}}.runs u SET lease_until = {_NOW} + %(ttl)s
FROM unnest(%(runs)s::bytea[], %(epochs)s::bigint[]) l(run_id, epoch)
WHERE u.run_id = l.run_id AND u.epoch = l.epoch AND u.owner = %(owner)s RETURNING u.run_id"""

_SETTLE = f"""
UPDATE {{s}}.runs SET owner = NULL,
    queue_state = CASE
        WHEN queue_state IS DISTINCT FROM 'running' THEN queue_state
        WHEN %(state)s::text = 'waiting' AND woken THEN 'ready'
        WHEN cancelled AND %(state)s::text IN ('waiting', 'ready') THEN 'ready'
        ELSE %(state)s::text END,
    rank = CASE WHEN %(state)s::text = 'waiting' AND (woken OR cancelled) THEN {_NOW}
        ELSE coalesce(%(rank)s::float8, rank) END,
    due = CASE WHEN woken OR cancelled THEN NULL ELSE %(due)s::float8 END,
    failures = coalesce(%(failures)s::integer, failures),
    reason = coalesce(%(reason)s::bytea, reason), woken = false
WHERE run_id = %(run)s AND epoch = %(epoch)s AND owner = %(owner)s
    AND (NOT %(expired)s OR lease_until <= {_NOW})
    AND (%(state)s::text IS NOT NULL OR {_NOT_AWAITED}) RETURNING 1"""
"""A run without a state is over: its last record is durable, and says so if the release is lost."""

_STALE = f"""
SELECT epoch, owner, lease_until - {_NOW}, {_COLUMNS} FROM {{s}}.runs
WHERE queue_state = 'running' AND (%(host)s::bytea IS NULL OR owner IS NULL
    OR lease_until <= {_NOW} OR position(%(host)s::bytea IN owner) > 0)"""

_PUT = """
UPDATE {s}.runs SET queue = %s, target = %s, queue_state = %s, priority = %s, queue_key = %s,
    rank = %s, due = %s, failures = %s, reason = %s, woken = %s, cancelled = %s
WHERE run_id = %s"""

_ANNOUNCE = f"""
INSERT INTO {{s}}.workers VALUES (%(id)s, %(facts)s, {_NOW}, {_NOW} + %(ttl)s)
ON CONFLICT (id) DO UPDATE
SET facts = excluded.facts, seen = excluded.seen, until = excluded.until"""

_REMOVE_EXPIRED = f"""
DELETE FROM {{s}}.workers WHERE id IN (
    SELECT id FROM {{s}}.workers WHERE until <= {_NOW} FOR UPDATE SKIP LOCKED)"""


IDLE_FOR = f"""
SELECT CASE WHEN EXISTS (
    SELECT FROM unnest(%(queues)s::bytea[]) q(name), unnest(%(targets)s::bytea[]) t(name), LATERAL (
        SELECT FROM {{s}}.runs u WHERE u.queue = q.name AND u.target = t.name
            AND u.queue_state = 'ready' LIMIT 1) r
) THEN 0.0::float8 WHEN min(due) IS NOT NULL THEN greatest(min(due) - {_NOW}, 0) END
FROM {{s}}.runs WHERE queue_state = 'waiting'"""


class PostgresQueues(QueueTable):
    """The queues of one schema, within a transaction on *db*."""

    def __init__(self, db: psycopg.Connection, queries: Queries) -> None:
        self._db = db
        self._queries = queries

    def next_due(self) -> float | None:
        raise AssertionError("the storage asks for it without a transaction")

    def clock(self, now: float) -> float:
        return float(self._all(f"SELECT {_NOW}")[0][0])

    def promote(self, now: float, queues: Sequence[str]) -> Mapping[str, QueueSettings]:
        with self._db.pipeline():
            self._do(_PROMOTE)
            found = self._db.execute(
                self._queries.text(
                    "SELECT name, settings FROM {s}.queues WHERE name = ANY(%s) AND limited"
                    " ORDER BY name FOR UPDATE"
                ),
                ([to_bytes(queue) for queue in queues],),
                binary=True,
            )
        return _read_settings(found.fetchall())

    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        where, values = ("", ()) if queue is None else ("WHERE name = %s", (to_bytes(queue),))
        return _read_settings(self._all(f"SELECT name, settings FROM {{s}}.queues {where}", values))

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        self._do(
            "INSERT INTO {s}.queues(name, settings, limited) VALUES (%s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET settings = excluded.settings,"
            " limited = excluded.limited",
            (to_bytes(queue), msgspec.json.encode(settings), settings.limited),
        )

    def running(self, queue: str) -> Mapping[str, int]:
        found = self._all(
            "SELECT queue_key, count(*) FROM {s}.runs"
            " WHERE queue = %s AND queue_state = 'running' GROUP BY queue_key",
            (to_bytes(queue),),
        )
        return {to_text(key): count for key, count in found}

    def starts(self, queue: str) -> list[float]:
        found = self._all("SELECT starts FROM {s}.queues WHERE name = %s", (to_bytes(queue),))
        return [*found[0][0]] if found else []

    def set_starts(self, queue: str, starts: list[float]) -> None:
        self._do("UPDATE {s}.queues SET starts = %s WHERE name = %s", (starts, to_bytes(queue)))

    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        values = {
            "queue": to_bytes(queue),
            "targets": [to_bytes(target) for target in targets],
            "full": [to_bytes(key) for key in full],
            "limit": limit,
        }
        return [_entry(row) for row in self._all(_READY, values)]

    def take(
        self, entries: Sequence[QueueEntry], owner: Owner, *, now: float, ttl: float
    ) -> list[Claim]:
        runs = [to_bytes(entry.run_id) for entry in entries]
        values = {"owner": msgspec.json.encode(owner), "ttl": ttl, "runs": runs, "dead": []}
        taken = {row[1]: row for row in self._all(_TAKE, values)}
        left = [run for run in runs if run not in taken]
        if left:
            held = self._all(
                "SELECT DISTINCT owner FROM {s}.runs WHERE run_id = ANY(%s) AND owner IS NOT NULL",
                (left,),
            )
            dead = [one for (one,) in held if is_dead(msgspec.json.decode(one, type=Owner))]
            values |= {"runs": left, "dead": dead}
            taken |= {row[1]: row for row in self._all(_TAKE, values)}
            self._do(_DEFER, ([run for run in left if run not in taken],))
        return [
            Claim(
                entry=_entry(taken[run][1:]),
                lease=Lease(to_text(run), taken[run][0], owner, now + ttl),
            )
            for run in runs
            if run in taken
        ]

    def claim(
        self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float
    ) -> list[Claim] | None:
        """Claim in one round trip; None where limits or held runs need a transaction."""
        values = {
            "queues": [to_bytes(queue) for queue in query.queues],
            "targets": [to_bytes(target) for target in query.targets],
            "limit": query.limit,
            "owner": msgspec.json.encode(owner),
            "ttl": ttl,
        }
        with self._db.pipeline():
            self._do(_PROMOTE)
            found = self._db.execute(self._queries.text(_CLAIM), values, binary=True)
        rows = found.fetchall()
        taken = [
            Claim(entry=_entry(row), lease=Lease(to_text(row[0]), epoch, owner, now + ttl))
            for _, epoch, *row in rows
            if epoch is not None
        ]
        return None if rows[0][0] and not taken else sorted(taken, key=_place)

    def renew(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        if not leases:
            return []
        values = {
            "runs": [to_bytes(lease.run_id) for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "owner": msgspec.json.encode(leases[0].owner),
            "ttl": ttl,
        }
        kept = {to_text(run) for (run,) in self._all(_RENEW, values)}
        return [lease.run_id for lease in leases if lease.run_id not in kept]

    def settle(self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool) -> bool:
        values = {
            "run": to_bytes(lease.run_id),
            "epoch": lease.epoch,
            "owner": msgspec.json.encode(lease.owner),
            "expired": expired,
            "state": entry.state if entry is not None else None,
            "rank": entry.rank if entry is not None else None,
            "due": entry.due if entry is not None else None,
            "failures": entry.failures if entry is not None else None,
            "reason": to_bytes(entry.reason) if entry is not None else None,
        }
        return bool(self._all(_SETTLE, values))

    def stale(self, now: float, host: str | None) -> list[StaleClaim]:
        found: list[StaleClaim] = []
        near = None if host is None else b'"host":%b,' % msgspec.json.encode(host)
        for epoch, owner, left, *row in self._all(_STALE, {"host": near}):
            entry = _entry(row)
            holder = None if owner is None else msgspec.json.decode(owner, type=Owner)
            lease = Lease(entry.run_id, epoch, holder, now + (left or 0.0))
            gone = holder is None or left is None or left <= 0
            found.append(StaleClaim(entry=entry, lease=lease, expired=gone))
        return found

    def get(self, run_id: str) -> QueueEntry | None:
        found = self._all(
            f"SELECT {_COLUMNS} FROM {{s}}.runs WHERE run_id = %s AND queue_state IS NOT NULL",
            (to_bytes(run_id),),
        )
        return _entry(found[0]) if found else None

    def put(self, run_id: str, entry: QueueEntry | None) -> None:
        if entry is None:
            self._do(
                "UPDATE {s}.runs SET queue_state = NULL WHERE run_id = %s", (to_bytes(run_id),)
            )
            return
        texts = [to_bytes(text) for text in (entry.queue, entry.target)]
        self._do(
            _PUT,
            (
                *(*texts, entry.state, entry.priority, to_bytes(entry.key), entry.rank, entry.due),
                *(entry.failures, to_bytes(entry.reason), entry.woken, entry.cancelled),
                to_bytes(run_id),
            ),
        )

    def newest_rank(self, queue: str, key: str) -> float | None:
        raise AssertionError("the database ranks what is queued")

    def find(self, query: EntryQuery) -> list[QueueEntry]:
        wanted, values = ["queue_state IS NOT NULL"], dict[str, Any](limit=query.limit)
        for column, value in (
            ("queue", None if query.queue is None else to_bytes(query.queue)),
            ("queue_state", query.state),
            ("cancelled", query.cancelled),
        ):
            if value is not None:
                wanted.append(f"{column} = %({column})s")
                values[column] = value
        source = "{s}.runs"
        if query.run_ids is not None:  # by their key, which OFFSET makes the planner take
            source = "(SELECT * FROM {s}.runs WHERE run_id = ANY(%(runs)s) OFFSET 0) named"
            values["runs"] = [to_bytes(run_id) for run_id in query.run_ids]
        return [
            _entry(row)
            for row in self._all(
                f"SELECT {_COLUMNS} FROM {source} WHERE {' AND '.join(wanted)}"
                " ORDER BY queue, queue_state, priority DESC, rank LIMIT %(limit)s",
                values,
            )
        ]

    def counts(self) -> Mapping[tuple[str, str], int]:
        return {(to_text(queue), state): count for queue, state, count in self._all(QUEUES)}

    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        facts = msgspec.json.encode(worker)
        with self._db.pipeline():
            self._do(_ANNOUNCE, {"id": worker.id, "facts": facts, "ttl": ttl})
            self._do(_REMOVE_EXPIRED)

    def workers(self, now: float) -> list[WorkerInfo]:
        found = self._all(f"SELECT facts, {_NOW} - seen FROM {{s}}.workers WHERE until > {_NOW}")
        return [
            msgspec.structs.replace(msgspec.json.decode(facts, type=WorkerInfo), seen=now - age)
            for facts, age in found
        ]

    def _do(self, statement: str, values: Any = ()) -> None:
        self._db.execute(self._queries.text(statement), values)

    def _all(self, statement: str, values: Any = ()) -> list[Any]:
        cursor = self._db.execute(self._queries.text(statement), values, binary=True)
        return cursor.fetchall()


def _place(claim: Claim) -> tuple[Any, ...]:
    return order_of(claim.entry)


def _read_settings(found: Sequence[Any]) -> Mapping[str, QueueSettings]:
    return {to_text(name): msgspec.json.decode(text, type=QueueSettings) for name, text in found}


def _entry(row: Sequence[Any]) -> QueueEntry:
    return QueueEntry(
        run_id=to_text(row[0]),
        queue=to_text(row[1]),
        target=to_text(row[2]),
        state=row[3],
        priority=row[4],
        key=to_text(row[5]),
        rank=row[6],
        due=row[7],
        failures=row[8],
        reason=to_text(row[9]),
        woken=row[10],
        cancelled=row[11],
    )
