"""The SQL that reads: listings by keyset, whole chains, heads and leases.

A page costs what it holds: every listing walks one index from the newest entry on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from psycopg import sql

from surehold.core.records import OPEN_FROM
from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.postgres.packing import (
    ID_AT,
    PackBody,
    as_it_is,
    id_bytes,
    id_time,
    pack_body,
)
from surehold.storage.postgres.rows import APPEND_ONE
from surehold.storage.postgres.schema import channel_of
from surehold.storage.postgres.statement import Statement
from surehold.storage.rows import (
    HIDDEN,
    MOST_NOTES,
    NESTED,
    NOTE,
    Listing,
    conditions_of_runs,
    conditions_of_times,
    kind_key,
    query_keys,
)
from surehold.storage.shared import COMMON_KIND, run_number, to_bytes

_BYTES = 4 << 20


class Queries:
    """Statements for one schema."""

    def __init__(self, schema: str, *, packs: bool = True) -> None:
        self.pack: PackBody = pack_body if packs else as_it_is
        self._schema = sql.Identifier(schema)
        self._texts: dict[str, bytes] = {}
        self.append = self.text(f"SELECT {{s}}.append_v1({_numbered(21)})")
        self.append_one = Statement(
            f"{channel_of(schema)}_append_one_v1",
            self.text(f"SELECT {{s}}.append_one_v1({_numbered(len(APPEND_ONE))})"),
            APPEND_ONE,
        )
        self.append_queued = self._queued("$1, $2, $3, $4, $5, $6, $7")
        self.append_queued_and = self._queued(
            "$1, $2, $3, $4, $5, $6, $7", "$29, '', '', 0, '', NULL, $30"
        )
        self.lock = self.text(
            "SELECT 1 FROM {s}.runs WHERE run_id = ANY(%s) ORDER BY run_id FOR UPDATE"
        )
        self.drop = self.text("SELECT {s}.drop_v1(%s, %s, %s)")
        self.delete_run = self.text("SELECT {s}.delete_run_v1(%s)")
        self.head = self.text("SELECT seq, digest, epoch FROM {s}.runs WHERE run_id = %s")
        self.digests = self.text(
            "SELECT r.seq, r.digest FROM {s}.records r JOIN {s}.runs u ON u.ordinal = r.run"
            " WHERE u.run_id = %s AND r.seq BETWEEN %s AND %s ORDER BY r.seq"
        )
        self.run = self.text(f"{_RUN} WHERE u.run_id = %s AND u.ordinal IS NOT NULL")
        self.scoped = self.text(
            "SELECT r.seq, r.digest, r.header FROM {s}.facets f JOIN {s}.records r ON r.ord = f.ord"
            " WHERE f.key = %s AND f.note = 0 AND r.run = %s ORDER BY f.ord DESC LIMIT 1"
        )
        self.read = self.text(_READ)
        self.find = self.text(_FIND)
        self.before = self.text(
            "SELECT f.ord, r.seq, r.digest, u.run_id, r.header FROM {s}.facets f"
            " JOIN {s}.records r ON r.ord = f.ord JOIN {s}.runs u ON u.ordinal = r.run"
            " WHERE f.key = %s ORDER BY f.ord"
        )
        self.notes = self.text(
            "SELECT r.seq, r.digest, u.run_id, r.header FROM {s}.facets f"
            " JOIN {s}.records r ON r.ord = f.ord JOIN {s}.runs u ON u.ordinal = r.run"
            f" WHERE f.key = ANY(%s) AND f.note = {NOTE} AND u.run_id = ANY(%s)"
            " ORDER BY u.run_id, r.seq"
        )
        self.lease = self.text(
            "SELECT epoch, owner, lease_until, token, extract(epoch FROM clock_timestamp())::float8"
            " FROM {s}.runs WHERE run_id = %s AND epoch > 0"
        )
        self.take = self.text(
            "INSERT INTO {s}.runs AS u (run_id, epoch, owner, lease_until, token)"
            " VALUES (%(run)s, %(epoch)s, %(owner)s, coalesce(%(until)s::float8,"
            " extract(epoch FROM clock_timestamp())::float8 + %(left)s), %(token)s)"
            " ON CONFLICT (run_id) DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner,"
            " lease_until = excluded.lease_until, token = excluded.token"
            " WHERE u.token = excluded.token OR u.epoch = %(seen)s"
            " AND u.lease_until IS NOT DISTINCT FROM %(seen_until)s"
            " AND u.token IS NOT DISTINCT FROM %(seen_token)s RETURNING 1"
        )
        clock = (
            "coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8 + %(ahead)s)"
        )
        self.take_free = self.text(
            # `core/records/lease.py: taken`, but for holders that are known to be dead.
            "INSERT INTO {s}.runs AS u (run_id, epoch, owner, lease_until, token)"
            f" VALUES (%(run)s, %(above)s + 1, %(owner)s, {clock} + %(ttl)s, %(token)s)"
            " ON CONFLICT (run_id) DO UPDATE SET epoch = CASE WHEN u.token = excluded.token"
            " THEN u.epoch ELSE greatest(u.epoch + 1, excluded.epoch) END,"
            " owner = excluded.owner, lease_until = excluded.lease_until, token = excluded.token"
            " WHERE u.token = excluded.token OR u.owner IS NULL"
            f" OR u.lease_until <= {clock} RETURNING u.epoch"
        )
        self.announce = self.text(
            "INSERT INTO {s}.watchers VALUES (%s, now() + make_interval(secs => %s))"
            " ON CONFLICT (id) DO UPDATE SET until = excluded.until"
        )
        self.leave = self.text("DELETE FROM {s}.watchers WHERE id = %s OR until < now()")
        self.known = self.text(
            "SELECT run_id FROM {s}.runs WHERE ordinal IS NOT NULL ORDER BY ordinal"
        )

    def _queued(self, *changes: str) -> bytes:
        """An append that, if it was stored, changes the run's entry in a queue."""
        calls = (f"CASE WHEN stored THEN {{s}}.change_queue_v1($8, {one}) END" for one in changes)
        return self.text(
            f"SELECT {', '.join(['stored', *calls])} FROM"
            f" (SELECT {{s}}.append_v1({_numbered(21, first=8)}) AS stored OFFSET 0) AS appended"
        )

    def text(self, statement: str) -> bytes:
        """*statement* with ``{s}`` as the schema's name."""
        made = self._texts.get(statement)
        if made is None:
            made = sql.SQL(statement).format(s=self._schema).as_bytes(None)
            self._texts[statement] = made
        return made

    def listing(self, query: RecordQuery) -> Listing:
        """List what *query* wants, and perhaps more: rows are still compared with it."""
        number = None if query.run_id is None else run_number(query.run_id)
        keys = query_keys(query, number)
        if query.kind == MOST_NOTES and number is not None:
            keys = [key for key in keys if key != kind_key(number, MOST_NOTES)]
        times, values = conditions_of_times(query, "%({})s")
        where = [_visible(HIDDEN if query.notes else HIDDEN | NOTE), *times]
        if query.run_id is not None:
            values["run"] = to_bytes(query.run_id)
        by_run = query.run_id is not None and not _is_rare(query)
        first = None if by_run or not keys else keys.pop(0)
        if keys:
            where.append("r.facets @> %(keys)s")
            values["keys"] = keys
        if first is None and query.run_id is not None:
            return self._of_run(query, where, values)
        source, place = "{s}.records r", "r.ord"
        if first is not None:
            values["key"] = first
            notes = "0, 1" if query.notes else "0"
            source, place = "{s}.facets f JOIN {s}.records r ON r.ord = f.ord", "f.ord"
            where += ["f.key = %(key)s", f"f.note IN ({notes})"]
            where += ["u.run_id = %(run)s"] * (query.run_id is not None)
        statement = (
            f"SELECT {place}, r.seq, r.digest, u.run_id, r.header"
            f" FROM {source} JOIN {{s}}.runs u ON u.ordinal = r.run"
            f" WHERE {' AND '.join(where)} AND {place} < %(bound)s"
            f" ORDER BY {place} DESC LIMIT %(size)s"
        )
        return Listing(self.text(statement), values)

    def _of_run(self, query: RecordQuery, where: list[str], values: dict[str, Any]) -> Listing:
        """List records of one run by seq.

        Rows are compared as pairs, so that the planner expects many and walks the index from the
        bound on, however few records it believes a run to have.
        """
        last = "%(bound)s"
        if query.scope == "" and not query.notes:
            where = [*where[1:], _visible(HIDDEN | NOTE | NESTED)]
            last = f"least({last}, (SELECT coalesce(latest, 0) + 1 FROM {_OF_RUN}))"
        statement = (
            "SELECT r.seq, r.seq, r.digest, %(run)s::bytea, r.header FROM {s}.records r"
            f" WHERE (r.run, r.seq) < ((SELECT ordinal FROM {_OF_RUN}), {last})"
            f" AND (r.run, r.seq) >= ((SELECT ordinal FROM {_OF_RUN}), 0)"
            f" AND {' AND '.join(where)} ORDER BY r.run DESC, r.seq DESC LIMIT %(size)s"
        )
        return Listing(self.text(statement), values, by_seq=True)

    def runs(self, query: RunQuery) -> tuple[bytes, dict[str, Any]]:
        """List runs, a page of *size* below the ordinal *bound*."""
        where, wanted = conditions_of_runs(query, "%({})s")
        where += ["u.ordinal IS NOT NULL", "u.ordinal < %(bound)s"]
        values: dict[str, Any] = {name: to_bytes(value) for name, value in wanted.items()}
        if query.saved_before is not None:
            where.append("u.saved_at < %(saved_before)s")
            values["saved_before"] = query.saved_before
        unfinished = query.open or query.not_status == "completed"
        if unfinished or query.status not in (None, "completed"):
            where.append("u.status <> 'completed'")
        if query.open:
            marked = f"position('{OPEN_FROM}'::bytea IN c.header) > 0"
            where.append(f"(u.seq > u.latest OR c.header IS NULL OR {marked})")
            where.append("(u.epoch > 0 OR u.queue_state IS NULL)")
        statement = f"{_RUN} WHERE {' AND '.join(where)} ORDER BY u.ordinal DESC LIMIT %(size)s"
        return self.text(statement), values

    def before_note(self, id: str, run_id: str | None) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Look for a note with this id, which has no row in `facets`.

        It is looked for in its run, or where records of its time are, or everywhere.
        """
        values = {"id": id_bytes(id), "text": f'"id":"{id}"'.encode()}
        if run_id is not None:
            yield self.text(f"{_NOTE} AND u.run_id = %(run)s"), values | {"run": to_bytes(run_id)}
            return
        at = id_time(values["id"])
        if at is not None:
            between = {"since": at - _AROUND, "until": at + _AROUND}
            yield self.text(f"{_NOTE} AND r.at BETWEEN %(since)s AND %(until)s"), values | between
        yield self.text(_NOTE), values

    def note_keys(self, run_ids: Collection[str], kinds: Collection[str]) -> list[bytes]:
        """The facets of the notes of some *kinds* in some runs."""
        return [kind_key(run_number(run_id), kind) for run_id in run_ids for kind in kinds]


def _numbered(count: int, first: int = 1) -> str:
    """The places of arguments, for a `psycopg.RawCursor`."""
    return ", ".join(f"${number}" for number in range(first, first + count))


def _visible(mask: int) -> str:
    """A test that no bit of *mask* is set; the planner expects most rows to pass it."""
    return f"CASE WHEN r.state & {mask} = 0 THEN true ELSE false END"


def _is_rare(query: RecordQuery) -> bool:
    """Return True if a facet selects fewer records than the run has."""
    rare_scope = bool(query.scope) and not query.notes
    return query.tag is not None or rare_scope or query.kind not in (None, COMMON_KIND, MOST_NOTES)


_RUN = """
SELECT u.run_id, u.ordinal, u.started_at, u.saved_at, u.seq, u.digest, u.name, u.status, u.latest,
    u.checkpoints, u.stored, h.digest, c.digest, c.header
FROM {s}.runs u
    LEFT JOIN {s}.records h ON h.run = u.ordinal AND h.seq = u.seq
    LEFT JOIN {s}.records c ON c.run = u.ordinal AND c.seq = u.latest"""

_NOTE = f"""
SELECT r.ord, r.seq, r.digest, u.run_id, r.header
FROM {{s}}.records r JOIN {{s}}.runs u ON u.ordinal = r.run WHERE r.state & {NOTE} = {NOTE}
AND (substr(r.header, {ID_AT}, 16) = %(id)s OR position(%(text)s::bytea IN r.header) > 0)"""
_AROUND = 10_000_000
"""Microseconds around the time of an id in which its record was made."""

_OF_RUN = "{s}.runs WHERE run_id = %(run)s"

_READ = f"""
SELECT u.seq, u.erased, r.seq, r.digest, r.header, r.body
FROM {{s}}.runs u LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT seq, digest, header, body,
            sum(length(body)) OVER (ORDER BY seq) - length(body) AS before
        FROM (
            SELECT * FROM {{s}}.records WHERE (run, seq) >= (u.ordinal, %(first)s)
                AND (run, seq) <= (u.ordinal, least(coalesce(%(last)s, u.seq), u.seq))
            ORDER BY run, seq LIMIT %(size)s
        ) page
    ) sized WHERE before < {_BYTES}
) r ON true
WHERE u.run_id = %(run)s AND u.ordinal IS NOT NULL ORDER BY r.seq"""

_FIND = f"""
SELECT r.seq, r.digest, u.run_id, r.header FROM {{s}}.facets f
JOIN {{s}}.records r ON r.ord = f.ord JOIN {{s}}.runs u ON u.ordinal = r.run
WHERE f.key >= %s AND f.key < %s AND f.note = 0 AND r.state & {HIDDEN} = 0 ORDER BY f.ord DESC"""
