"""Journals in a PostgreSQL schema: the medium for many processes and machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from operator import methodcaller
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from surehold.core.policy import change_of
from surehold.core.records import Header, Lease, Owner, Record, check_run_id
from surehold.errors import ConflictError, CorruptError, StorageUnavailableError, UsageError
from surehold.lazy import extra
from surehold.storage import shared
from surehold.storage.abilities import Fact, Inspection
from surehold.storage.base import Batch, RecordQuery, RunInfo, RunQuery, RunTally, Storage, TakenRun
from surehold.storage.notifications import Listening
from surehold.storage.postgres.appends import AppendCall, append_call, is_one
from surehold.storage.postgres.connections import Connections
from surehold.storage.postgres.diagnosis import diagnose
from surehold.storage.postgres.notifications import PostgresListener
from surehold.storage.postgres.queries import Queries
from surehold.storage.postgres.queue import IDLE_FOR, PostgresQueues
from surehold.storage.postgres.repair import inspect_run, lost_runs, rewrite_run
from surehold.storage.postgres.rows import (
    append_one_values,
    head_at,
    head_of,
    open_packed,
    packed_record,
)
from surehold.storage.postgres.schema import channel_of, create, create_index, missing_indexes
from surehold.storage.postgres.statement import TRUE, PooledConnection
from surehold.storage.postgres.tallies import CHECK, SEED, TALLY
from surehold.storage.queueing import Claim, ClaimQuery
from surehold.storage.rows import MOST_NOTES, Listing, id_key, id_range, scope_key
from surehold.storage.shared import run_number, to_bytes, to_text

with extra("postgres", "PostgreSQL storages need psycopg"):
    import psycopg

T = TypeVar("T")

_PAGE = 256
_NO_BOUND = 1 << 62
_TRIES = 20
_CONNECTIONS, _MOST_CONNECTIONS = 4, 33
"""Connections of a process that named no number: by default, and of a worker with many threads."""
_APPENDS, _MOST_APPENDS = 3, 6
"""Appends at once: of a process by default, and of a worker, for half of its connections."""


_LeaseRow = tuple[int, bytes | None, float, bytes | None, float]
"""Epoch, owner, end and token of a lease, and the time of the database."""


class PostgresStorage(shared.SwappedLeases[_LeaseRow], shared.QueueSlots, Listening, Storage):
    """Keeps journals in the schema *schema* of the PostgreSQL database at *url*.

    The schema is created if it is missing, and one of an older Surehold is upgraded; without
    *upgrade* both are refused. Any number of processes and machines may use it at the
    same time, also through a pooler in transaction mode; leases expire by the database's clock.
    *pool* is the most connections this process opens: 4 if it is not given, and more for a worker
    with more threads. A call waits *timeout* seconds for an answer; while the server is away,
    restarting or failing over, it is repeated for up to *patience* seconds. Opening is not: it
    fails at once. *compress* ("zstd", "gzip" or False) compresses bodies before they are sent.
    With ``lease_clock="caller"`` leases expire by the clocks of the processes that take them.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "surehold",
        pool: int | None = None,
        compress: bool | str = "zstd",
        timeout: float = 30.0,
        patience: float = 30.0,
        upgrade: bool = True,
        lease_clock: Literal["database", "caller"] = "database",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (pool is not None and pool < 1) or timeout <= 0 or patience < 0:
            raise UsageError("pool and timeout must be positive, and patience not negative")
        if not schema.strip():
            raise UsageError("schema is empty", hint="leave it out, or give it a name")
        self.body_compression = shared.read_compression(compress)
        self._schema = schema
        self._clock = clock
        self._sized = pool is not None
        self._database_clock = lease_clock == "database"
        self._sql = Queries(schema, packs=self.body_compression is not None)
        self._db = Connections(url, size=pool or _CONNECTIONS, timeout=timeout, patience=patience)
        self._share(pool or _CONNECTIONS)
        try:
            self._db.run_once(
                partial(create, schema=schema, connect=self._db.connect, upgrade=upgrade)
            )
        except BaseException:
            self._db.close()
            raise
        self._listener = PostgresListener(self._db, self._sql, channel_of(schema))

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        if len(batches) == 1:
            return [self._append_alone(batches[0])]
        sealed = [(batch, batch.opened()) for batch in batches]
        values = [append_call(self._sql, batch, records) for batch, records in sealed]
        stored = self._db.run(partial(self._append, values))
        return [
            None if done else self._explain(batch, records)
            for (batch, records), done in zip(sealed, stored, strict=True)
        ]

    def append_all(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        sealed = [(batch, batch.opened()) for batch in batches]
        values = [append_call(self._sql, batch, records) for batch, records in sealed]
        for _ in range(_TRIES):
            if all(self._db.run(partial(self._append_all, values))):
                return [None] * len(sealed)
            decided = [self._decide(batch, records) for batch, records in sealed]
            results = [one if isinstance(one, ConflictError) else None for one in decided]
            if any(results) or "store" not in decided:  # all stored: an attempt had succeeded
                return results
        raise StorageUnavailableError("the runs changed during every attempt to read them")

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        self._db.check_open()
        page = self._page_of_records(run_id, max(first or 1, 1), last)
        return self._read(run_id, page, max(first or 1, 1), last)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        self._db.check_open()
        plan = self._sql.listing(query)
        bound = _NO_BOUND if query.before is None else self._bound(query, plan)
        return self._headers(query, plan, bound)

    def find(self, id_prefix: str) -> list[Header]:
        first, after = id_range(id_prefix)
        rows = self._all(self._sql.find, (first, first + b"\0"))
        rows = rows or self._all(self._sql.find, (first, after))
        return shared.newest_of_ids(
            open_packed(to_text(run_id), seq, digest, text) for seq, digest, run_id, text in rows
        )

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self._db.check_open()
        return self._runs(query)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        return self._db.run(partial(self._head, run_id=run_id, scope=scope))

    def count_runs(self, *, now: float, most: int) -> RunTally:
        values = {"now": None if self._database_clock else now, "most": most}
        found = self._all(self._sql.text(TALLY), values)
        return RunTally(
            {(to_text(status), hold): count for status, hold, count, _ in found},
            {hold: ordinals for _, hold, _, ordinals in found if ordinals},
        )

    def has_run(self, run_id: str) -> bool:
        return bool(self._all(self._sql.head, (to_bytes(run_id),)))

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> list[Header]:
        if MOST_NOTES in kinds:
            return list(super().notes(run_ids, kinds, strict=strict))
        keys = self._sql.note_keys(run_ids, kinds)
        rows = self._all(self._sql.notes, (keys, [to_bytes(run_id) for run_id in run_ids]))
        return _whole(rows, strict=strict)

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        if hide is None and erase is None:
            return int(self._one(self._sql.delete_run, (to_bytes(run_id),))[0])
        values = (to_bytes(run_id), [*{*(hide or ())} - {*(erase or ())}], [*(erase or ())])
        affected = int(self._one(self._sql.drop, values)[0])
        if affected < 0:
            raise shared.cannot_erase(run_id, -affected)
        return affected

    def fit(self, threads: int) -> None:
        if not self._sized:
            self._share(self._db.widen(min(threads + 1, _MOST_CONNECTIONS)))

    def close(self) -> None:
        self._listener.close()
        self._db.close()

    def in_queues(self, work: Callable[[shared.QueueTable], T]) -> T:
        def within(db: psycopg.Connection) -> T:
            with db.transaction():
                return work(PostgresQueues(db, self._sql))

        return self._db.run(within)

    def ask_queues(self, work: Callable[[shared.QueueTable], T]) -> T:
        return self._db.run(lambda db: work(PostgresQueues(db, self._sql)))

    def claim(self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float) -> list[Claim]:
        claims: list[Claim] | None = None
        if query.run_id is None:
            claims = self._db.run(
                lambda db: PostgresQueues(db, self._sql).claim(query, owner, now=now, ttl=ttl)
            )
        return super().claim(query, owner, now=now, ttl=ttl) if claims is None else claims

    def idle_for(self, query: ClaimQuery, *, now: float) -> float | None:
        values = {
            "queues": [to_bytes(queue) for queue in query.queues],
            "targets": [to_bytes(target) for target in query.targets],
        }
        found: float | None = self._one(self._sql.text(IDLE_FOR), values)[0]
        return found

    def check_medium(self, *, repair: bool) -> list[str]:
        lacking = self._db.run(partial(missing_indexes, schema=self._schema))
        for name in lacking if repair else ():
            self._db.run(partial(create_index, schema=self._schema, name=name))
        found = [f"index {name} is missing" for name in lacking]
        if self._one(self._sql.text(CHECK), ())[0]:
            found.append("the counts of runs are wrong")
            if repair:
                self._db.run(lambda db: db.execute(self._sql.text(SEED)))
        return found

    def diagnose(self) -> list[Fact]:
        return self._db.run_once(partial(diagnose, schema=self._schema))

    def known_runs(self) -> list[str]:
        listed = [to_text(run_id) for (run_id,) in self._all(self._sql.known, ())]
        return list(dict.fromkeys([*listed, *self.lost_runs()]))

    def lost_runs(self) -> list[str]:
        return list(self._db.run(partial(lost_runs, sql=self._sql)))

    def inspect(self, run_id: str) -> Inspection | None:
        return self._db.run(partial(inspect_run, sql=self._sql, run_id=run_id))

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        work = partial(
            rewrite_run, sql=self._sql, run_id=run_id, records=records, hidden=hidden, head=head
        )
        self._db.run(work)
        return f"{self._schema}.quarantine"

    def _share(self, connections: int) -> None:
        most = min(max((connections - 1) // 2, _APPENDS), _MOST_APPENDS)
        self.appends_at_once = max(1, min(connections - 1, most))

    def _append_all(self, calls: list[AppendCall], db: psycopg.Connection) -> list[bool]:
        stored: list[bool] = []
        with db.transaction():
            db.execute(self._sql.lock, (sorted({call.run_id for call in calls}),))
            stored += [call.execute(db) for call in calls]
            if not all(stored):
                raise psycopg.Rollback
        return stored

    def _append_alone(self, batch: Batch) -> ConflictError | None:
        records = batch.opened()
        if is_one(batch, records) and change_of(records) is None:
            values = append_one_values(batch, records[0], self._sql.pack)
            call = methodcaller("call", self._sql.append_one, values)
            stored = self._db.run(call) == TRUE
        else:
            stored = self._db.run(append_call(self._sql, batch, records).execute)
        return None if stored else self._explain(batch, records)

    def _append(self, calls: list[AppendCall], db: PooledConnection) -> list[bool]:
        prepare = db.prepares
        # Without BEGIN a pipeline is one transaction and one round trip; with it they are four.
        with db.pipeline():
            # In one order, so that two processes never wait for each other in a circle.
            runs = (sorted({call.run_id for call in calls}),)
            db.execute(self._sql.lock, runs, prepare=prepare)
            cursors = [
                psycopg.RawCursor(db).execute(call.sql, call.values, prepare=prepare, binary=True)
                for call in calls
            ]
        rows = [cursor.fetchone() for cursor in cursors]
        return [bool(row and row[0]) for row in rows]

    def _explain(self, batch: Batch, records: list[Record]) -> ConflictError | None:
        """Tell a retry that had succeeded from a conflict; nothing was stored just now."""
        decision = self._decide(batch, records)
        if decision == "store":  # it would do now: what stood in its way is gone
            return self.append([batch])[0]
        return None if decision == "stored" else decision

    def _decide(
        self, batch: Batch, records: list[Record]
    ) -> Literal["store", "stored"] | ConflictError:
        run = to_bytes(batch.run_id)
        found = self._all(self._sql.head, (run,))
        seq, digest, epoch = found[0] if found else (0, b"", 0)
        stored: list[tuple[int, str]] = []
        if shared.may_be_retry(records, seq):
            bounds = (run, records[0].header.seq, records[-1].header.seq)
            stored = [(at, dig.hex()) for at, dig in self._all(self._sql.digests, bounds)]
        return shared.decide_append(
            batch, records, seq=seq, digest=digest.hex(), epoch=epoch, stored=stored
        )

    def _read(self, run_id: str, page: list[Any], seq: int, last: int | None) -> Iterator[Record]:
        prev: str | None = None
        while page:
            head, erased = page[0][0], page[0][1]
            end = head if last is None else min(last, head)
            for _, _, found, digest, text, body in page:
                upto = end if found is None else found - 1
                if upto >= seq and not any(gap.lower <= seq and upto < gap.upper for gap in erased):
                    raise shared.missing(run_id, seq)
                if found is None:
                    return
                record = packed_record(run_id, found, digest, text, body)
                if prev is not None and found == seq and record.header.prev != prev:
                    raise shared.misplaced(run_id, found)
                prev, seq = record.header.digest, found + 1
                yield record
            if seq > end:
                return
            page = self._page_of_records(run_id, seq, last)

    def _page_of_records(self, run_id: str, first: int, last: int | None) -> list[Any]:
        values = {"run": to_bytes(run_id), "first": first, "last": last, "size": _PAGE}
        return self._all(self._sql.read, values)

    def _headers(self, query: RecordQuery, plan: Listing, bound: int) -> Iterator[Header]:
        def fetch(bound: int, size: int) -> tuple[list[Header], int | None]:
            rows = self._all(plan.sql, plan.page(bound, size))
            found = _whole((row[1:] for row in rows), strict=query.run_id is not None)
            return found, rows[-1][0] if len(rows) == size else None

        wanted = (
            one for one in shared.paged(fetch, bound, limit=query.limit) if query.matches(one)
        )
        return islice(wanted, query.limit)

    def _bound(self, query: RecordQuery, plan: Listing) -> int:
        """The place of the record that *query* calls `before`, hidden or not."""
        id = query.before or ""
        rows = self._all(self._sql.before, (id_key(id),))
        for statement, values in () if rows else self._sql.before_note(id, query.run_id):
            rows = rows or self._all(statement, values)
        found: Iterable[tuple[int, Header]] = (
            (seq if plan.by_seq else place, open_packed(to_text(run), seq, digest, text))
            for place, seq, digest, run, text in rows
        )
        return shared.bound_of(query, found)

    def _runs(self, query: RunQuery) -> Iterator[RunInfo]:
        sql, values = self._sql.runs(query)

        def fetch(bound: int, size: int) -> tuple[list[RunInfo], int | None]:
            rows = self._all(sql, {**values, "bound": bound, "size": size})
            found = [_info(query, row) for row in rows]
            following = found[-1].ordinal if len(rows) == size else None
            return [info for info in found if query.matches(info)], following

        start = _NO_BOUND if query.before is None else query.before
        return islice(shared.paged(fetch, start, limit=query.limit), query.limit)

    def _head(
        self, db: psycopg.Connection, run_id: str, scope: str
    ) -> tuple[RunInfo, Header | None] | None:
        with db.transaction() if scope else nullcontext():
            if scope:
                db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = db.execute(self._sql.run, (to_bytes(run_id),), binary=True).fetchone()
            if row is None:
                return None
            info, newest = head_of(row)
            if not scope:
                return info, newest
            key = scope_key(run_number(run_id), scope)
            found = db.execute(self._sql.scoped, (key, info.ordinal), binary=True).fetchone()
        return info, (None if found is None else open_packed(run_id, *found))

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        values = {
            "run": to_bytes(check_run_id(run_id)),
            "owner": msgspec.json.encode(owner),
            "now": None if self._database_clock else now,
            "ahead": now - self._clock(),
            "ttl": ttl,
            "above": above,
            "token": uuid4().bytes,
        }

        def work(db: psycopg.Connection) -> tuple[Any, Any]:
            with db.pipeline():
                taken = db.execute(self._sql.take_free, values, binary=True)
                head = db.execute(self._sql.run, (values["run"],), binary=True)
            return taken.fetchone(), head.fetchone()

        taken, head = self._db.run(work)
        if taken is None:  # it is held, perhaps by a process that has ended
            return super().take_run(run_id, owner, now=now, ttl=ttl, above=above)
        lease = Lease(run_id, taken[0], owner, now + ttl)
        try:
            return TakenRun(lease, *((None, None) if head is None else head_of(head)))
        except CorruptError:
            self.release_lease(lease)
            raise

    def _lease_row(self, run_id: str) -> _LeaseRow | None:
        rows = self._all(self._sql.lease, (to_bytes(run_id),))
        return rows[0] if rows else None

    def _held(self, run_id: str, row: _LeaseRow, now: float) -> Lease:
        epoch, owner, until, _, clock = row
        expires_at = now + (until - clock) if self._database_clock else until
        holder = None if owner is None else msgspec.json.decode(owner, type=Owner)
        return Lease(run_id, epoch, holder, expires_at)

    def _put_lease(self, lease: Lease, seen: _LeaseRow | None, now: float) -> bool:
        values = {
            "run": to_bytes(lease.run_id),
            "epoch": lease.epoch,
            "owner": None if lease.owner is None else msgspec.json.encode(lease.owner),
            "until": None if self._database_clock else lease.expires_at,
            "left": lease.expires_at - now,
            "token": uuid4().bytes,
            "seen": 0 if seen is None else seen[0],
            "seen_until": None if seen is None else seen[2],
            "seen_token": None if seen is None else seen[3],
        }
        return bool(self._all(self._sql.take, values))

    def _all(self, sql: Any, values: Any) -> list[Any]:
        return self._db.run(lambda db: db.execute(sql, values, binary=True).fetchall())

    def _one(self, sql: Any, values: Any) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._all(sql, values)[0]
        return row


def _whole(rows: Iterable[tuple[int, bytes, bytes, bytes]], *, strict: bool) -> list[Header]:
    """The headers of rows of seq, digest, run, text; unless *strict*, the undamaged."""
    found = []
    for seq, digest, run, text in rows:
        with shared.Sparing(to_text(run), strict=strict):
            found.append(open_packed(to_text(run), seq, digest, text))
    return found


def _info(query: RunQuery, row: tuple[Any, ...]) -> RunInfo:
    """A head of a listing; damage is an error only if its run or name is asked for."""
    head = head_at(row)
    with shared.Sparing(head.run_id, strict=query.run_id is not None or query.name is not None):
        return head_of(row)[0]
    return shared.run_info(head, None)
