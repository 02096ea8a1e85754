"""Journals in one SQLite file: the medium for one machine, and the default."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import apsw

from surehold.core.policy import QueueEntry
from surehold.core.records import Header, Owner, Record, check_run_id
from surehold.errors import ConflictError, UsageError
from surehold.storage import shared
from surehold.storage.abilities import Inspection
from surehold.storage.base import (
    Batch,
    Lease,
    RecordQuery,
    RunInfo,
    RunQuery,
    RunTally,
    Storage,
    TakenRun,
)
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, StaleClaim
from surehold.storage.rows import HIDDEN, Listing, id_key, id_range, open_row, record_of
from surehold.storage.sqlite.connections import Pool
from surehold.storage.sqlite.index import listing
from surehold.storage.sqlite.queue import SQLiteQueues
from surehold.storage.sqlite.rows import (
    Values,
    head_of,
    info_of,
    infos,
    lease_of,
    notes_of,
    one,
    rows,
    runs_listing,
    tally,
)
from surehold.storage.sqlite.writes import (
    append_batch,
    append_next,
    delete_run,
    drop,
    next_record,
    put_lease,
)

T = TypeVar("T")

_PAGE_BYTES = 1 << 22
_VACUUM = 256
"""Pages given back at once after an erasure; `compact` gives back all."""
_NO_BOUND = 1 << 62
_RUNS_REMEMBERED = 1024


class _RefusedError(Exception):
    """Undoes a transaction in which a batch conflicted."""

    def __init__(self, results: list[ConflictError | None]) -> None:
        super().__init__()
        self.results = results


class SQLiteStorage(shared.LeaseSlots, shared.QueueSlots, Storage):
    """Keeps journals in the SQLite file at *path*, which is made if it is missing.

    Threads, forks and other processes of the machine may use the file at the same time; it must
    not lie on a network file system. It can lease runs as well.

    A call waits up to *busy_timeout* seconds for another process that is writing. *compress* is
    how bodies are stored from now on: "zstd", True or "gzip", or False for plain text, which other
    programs can read in place. What is there stays readable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with SQLiteStorage(f"{directory}/agents.db") as storage:
    ...         list(storage.runs(RunQuery()))
    []
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compress: bool | str = "zstd",
        busy_timeout: float = 10.0,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise UsageError(f"{str(path)!r} is not a file", hint="MemoryStorage() needs none")
        if busy_timeout < 0:
            raise UsageError(f"busy_timeout is {busy_timeout}", hint="give 0 or more seconds")
        self.body_compression = shared.read_compression(compress, on="gzip")
        # The log lies beside the file, not beside a link to it.
        self.path = Path(os.path.realpath(path))
        self._pool = Pool(self.path, busy_timeout)
        self._run_keys: dict[str, int] = {}
        """The keys of runs in the database, if they are still there."""

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        if len(batches) == 1 and (record := next_record(batches[0])) is not None:
            run_id = batches[0].run_id
            known = self._run_keys.get(run_id)
            key = self._pool.append(partial(append_next, known, record, batches[0].epoch))
            if key is not None:
                if key != known:
                    self._remember(run_id, key)
                return [None]
        sealed = [(batch, next_record(batch) or batch.opened()) for batch in batches]
        return self._pool.append(partial(self._append, sealed), len(sealed))

    def append_all(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        sealed = [(batch, next_record(batch) or batch.opened()) for batch in batches]

        def work(cursor: apsw.Cursor) -> list[ConflictError | None]:
            results = self._append(sealed, cursor)
            if any(results):
                raise _RefusedError(results)
            return results

        try:
            return self._pool.append(work, len(sealed))
        except _RefusedError as refused:
            return refused.results

    def _append(
        self, sealed: Sequence[tuple[Batch, Record | list[Record]]], cursor: apsw.Cursor
    ) -> list[ConflictError | None]:
        db = cursor.connection
        results: list[ConflictError | None] = []
        for batch, given in sealed:
            known = self._run_keys.get(batch.run_id)
            stored: ConflictError | int | None
            if isinstance(given, list):
                stored = append_batch(db, batch, given, SQLiteQueues(db))
            else:
                stored = append_next(known, given, batch.epoch, cursor)
                if stored is None:
                    stored = append_batch(db, batch, [given], SQLiteQueues(db))
            if isinstance(stored, int):
                self._remember(batch.run_id, stored)
                stored = None
            results.append(stored)
        return results

    def _remember(self, run_id: str, key: int) -> None:
        if len(self._run_keys) >= _RUNS_REMEMBERED:
            self._run_keys.clear()
        self._run_keys[run_id] = key

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        head = self._head(run_id)
        if head is None:
            return iter(())
        end = head.seq if last is None else min(last, head.seq)
        return self._read(head, max(first or 1, 1), end)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        head: shared.Head | None = None
        if query.run_id is not None and (head := self._head(query.run_id)) is None:
            return iter(())
        plan = listing(query, head.ordinal if head else None)
        bound = _NO_BOUND if query.before is None else self._bound(query, plan)
        if head is not None and plan.whole:
            found = self._headers_of_run(query, plan, head, min(bound, head.seq + 1))
        else:
            found = self._headers(query, plan, bound)
        return islice(found, query.limit)

    def find(self, id_prefix: str) -> list[Header]:
        first, after = id_range(id_prefix)
        with self._pool.reading() as db:
            page = rows(db, f"{_FIND} m.key = ? AND {_FOUND}", (first,))
            if not page:
                page = rows(db, f"{_FIND} m.key >= ? AND m.key < ? AND {_FOUND}", (first, after))
        found = [open_row(run_id, seq, digest, text) for _, seq, digest, run_id, text in page]
        for header in found:
            if not header.id.startswith(id_prefix):
                raise shared.misplaced(header.run_id, header.seq)
        return shared.newest_of_ids(found)

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self._pool.check_open()
        return self._runs(query)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._pool.snapshot(scope != "") as db:
            found = info_of(db, run_id)
            if found is None or not scope:
                return found
            info, _ = found
            plan = listing(RecordQuery(run_id=run_id, scope=scope), info.ordinal)
            for _, seq, digest, _, text in rows(db, plan.sql, plan.page(_NO_BOUND, 1)):
                return info, open_row(run_id, seq, digest, text)
            return info, None

    def count_runs(self, *, now: float, most: int) -> RunTally:
        with self._pool.reading() as db:
            return tally(db, now, most)

    def has_run(self, run_id: str) -> bool:
        return self._head(run_id) is not None

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> Iterable[Header]:
        if shared.COMMON_KIND in kinds:
            return super().notes(run_ids, kinds, strict=strict)
        found: list[Header] = []
        with self._pool.reading() as db:
            for run_id in run_ids:
                with shared.Sparing(run_id, strict=strict):
                    found += notes_of(db, run_id, kinds)
        return found

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        def work(db: apsw.Connection) -> int:
            found = head_of(db, run_id)
            if found is None:
                return 0
            if hide is None and erase is None:
                affected = delete_run(db, found[0])
                SQLiteQueues(db).put(run_id, None)
            else:
                affected = drop(db, found[0], set(hide or ()), set(erase or ()))
            if erase or hide is None:
                db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()
            return affected

        return self._pool.write(work)

    def compact(self) -> None:
        with self._pool.maintaining() as db:
            for _ in range(0, db.pragma("freelist_count"), _VACUUM):
                db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._pool.close()

    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        def work(db: apsw.Connection) -> Lease | None:
            lease = change(lease_of(db, run_id))
            if lease is not None:
                put_lease(db, lease)
            return lease

        return self._pool.write(work)

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        check_run_id(run_id)

        def work(db: apsw.Connection) -> TakenRun:
            held = lease_of(db, run_id)
            lease = shared.take(held, run_id, owner, now=now, ttl=ttl, above=above)
            put_lease(db, lease)
            return TakenRun(lease, *(info_of(db, run_id) or (None, None)))

        return self._pool.write(work)

    def lease_of(self, run_id: str) -> Lease | None:
        with self._pool.reading() as db:
            return lease_of(db, run_id)

    def in_queues(self, work: Callable[[shared.QueueTable], T]) -> T:
        return self._pool.write(lambda db: work(SQLiteQueues(db)))

    def claim(self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float) -> list[Claim]:
        with self._pool.reading() as db:  # most looks find nothing, and need not write
            table = SQLiteQueues(db)
            some = any(table.ready(queue, query.targets, (), 1) for queue in query.queues)
            if not some and not table.due(now):
                return []
        return super().claim(query, owner, now=now, ttl=ttl)

    def entries(self, query: EntryQuery) -> Iterator[QueueEntry]:
        with self._pool.reading() as db:
            return iter(SQLiteQueues(db).find(query))

    def entry_of(self, run_id: str) -> QueueEntry | None:
        with self._pool.reading() as db:
            return SQLiteQueues(db).get(run_id)

    def stale_claims(self, *, now: float, host: str | None = None) -> list[StaleClaim]:
        with self._pool.snapshot() as db:
            return SQLiteQueues(db).stale(now, host)

    @classmethod
    def salvage(cls, path: str | os.PathLike[str]) -> list[str]:
        """Bring what can be read of a file that does not open into a new one in its place.

        The damaged one is kept beside it. Tells what was done; `CheckpointManager.repair` then
        tells which records are missing.
        """
        from surehold.storage.sqlite.repair import salvage

        return salvage(Path(os.path.realpath(path)), cls)

    def check_medium(self, *, repair: bool) -> list[str]:
        """Find pages that cannot be read; with *repair*, salvage into a new file.

        For that, no other process may have the file open.
        """
        from surehold.storage.sqlite.repair import bad_pages

        with self._pool.reading():
            told = bad_pages(self.path)
        if told and repair:
            with self._pool.apart():
                told = self.salvage(self.path)
        return told

    def known_runs(self) -> list[str]:
        from surehold.storage.sqlite.repair import lost_runs

        with self._pool.snapshot() as db:
            listed = [run_id for (run_id,) in rows(db, "SELECT run_id FROM runs ORDER BY pk", ())]
            return list(dict.fromkeys([*listed, *lost_runs(db)]))

    def lost_runs(self) -> list[str]:
        from surehold.storage.sqlite.repair import lost_runs

        with self._pool.snapshot() as db:
            return list(lost_runs(db))

    def inspect(self, run_id: str) -> Inspection | None:
        from surehold.storage.sqlite.repair import inspect_run, lost_runs

        with self._pool.snapshot() as db:
            if (found := head_of(db, run_id)) is not None:
                return inspect_run(db, found[0])
            if (head := lost_runs(db).get(run_id)) is not None:
                return shared.unlisted(inspect_run(db, head))
            return None

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        from surehold.storage.sqlite.repair import list_run, lost_runs, rewrite_run

        opened = shared.checked_run(run_id, records)
        quarantine = self.path.with_name(f"{self.path.name}.quarantine")

        def work(db: apsw.Connection) -> str:
            found = head_of(db, run_id)
            there = found[0] if found is not None else lost_runs(db).get(run_id)
            if there is None:
                raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
            shared.check_head(run_id, head, there.seq)
            if found is None:
                list_run(db, there)
            return str(rewrite_run(db, there, opened, hidden, quarantine))

        return self._pool.write(work)

    def restore_leases(self, leases: Iterable[Lease]) -> None:
        """Store unchanged copies of another file's leases."""

        def work(db: apsw.Connection) -> None:
            for lease in leases:
                put_lease(db, lease)

        self._pool.write(work)

    def _head(self, run_id: str) -> shared.Head | None:
        with self._pool.reading() as db:
            found = head_of(db, run_id)
        return None if found is None else found[0]

    def _fetch(self, sql: str, values: Values) -> list[Any]:
        with self._pool.reading() as db:
            return rows(db, sql, values)

    def _read(self, head: shared.Head, seq: int, end: int) -> Iterator[Record]:
        prev: str | None = None
        for at, digest, text, body in shared.paged(partial(self._records, head, end), seq):
            if at != seq:
                if not self._was_erased(head, seq, at - 1):
                    return
                prev = None
            record = record_of(head.run_id, at, digest, text, body)
            if prev is not None and record.header.prev != prev:
                raise shared.misplaced(head.run_id, at)
            prev, seq = record.header.digest, at + 1
            yield record
        if seq <= end:
            self._was_erased(head, seq, end)

    def _records(
        self, head: shared.Head, end: int, first: int, size: int
    ) -> tuple[list[Any], int | None]:
        """Some of the records of a run, at least one if there is any."""
        page: list[Any] = []
        weight = 0
        with self._pool.reading() as db:
            cursor = db.execute(_READ, (head.ordinal, first, end, size))
            for row in cursor:
                page.append(row)
                weight += len(row[3]) if isinstance(row[3], bytes) else 0
                if weight > _PAGE_BYTES:
                    break
            cursor.close()
        return page, page[-1][0] + 1 if page and page[-1][0] < end else None

    def _was_erased(self, head: shared.Head, first: int, last: int) -> bool:
        """True if the records that are missing were erased, False if their whole run was."""
        with self._pool.reading() as db:
            covered = one(
                db,
                "SELECT 1 FROM erased WHERE run = ? AND first <= ? AND last >= ?",
                (head.ordinal, first, last),
            )
            gone = not covered and not one(db, "SELECT 1 FROM runs WHERE pk = ?", (head.ordinal,))
        if not covered and not gone:
            raise shared.missing(head.run_id, first)
        return not gone

    def _headers_of_run(
        self, query: RecordQuery, plan: Listing, head: shared.Head, bound: int
    ) -> Iterator[Header]:
        page = partial(self._page, plan)
        for seq, _, digest, run_id, text in shared.paged(page, bound, limit=query.limit):
            if seq != bound - 1 and not self._was_erased(head, seq + 1, bound - 1):
                return
            bound = seq
            if seq == head.seq and digest.hex() != head.digest:
                raise shared.misplaced(run_id, seq)
            if text is not None:
                header = open_row(run_id, seq, digest, text)
                if query.matches(header):
                    yield header
        if bound > 1:
            self._was_erased(head, 1, bound - 1)

    def _headers(self, query: RecordQuery, plan: Listing, bound: int) -> Iterator[Header]:
        page = partial(self._page, plan)
        for _, seq, digest, run_id, text in shared.paged(page, bound, limit=query.limit):
            header = None
            with shared.Sparing(run_id, strict=query.run_id is not None):
                header = open_row(run_id, seq, digest, text)
            if header is not None and query.matches(header):
                yield header

    def _page(self, plan: Listing, bound: int, size: int) -> tuple[list[Any], int | None]:
        found = self._fetch(plan.sql, plan.page(bound, size))
        return found, found[-1][0] if len(found) == size else None

    def _runs(self, query: RunQuery) -> Iterator[RunInfo]:
        sql, values = runs_listing(query)

        def page(bound: int, size: int) -> tuple[list[RunInfo], int | None]:
            with self._pool.reading() as db:
                found = infos(db, sql, {**values, "bound": bound, "size": size})
            following = found[-1][0].ordinal if len(found) == size else None
            return [info for info, _ in found if query.matches(info)], following

        start = _NO_BOUND if query.before is None else query.before
        return islice(shared.paged(page, start, limit=query.limit), query.limit)

    def _bound(self, query: RecordQuery, plan: Listing) -> int:
        """The place of the record that *query* calls `before`, hidden or not."""
        page = self._fetch(f"{_FIND} m.key = ? ORDER BY m.ord", (id_key(query.before or ""),))
        found: Iterable[tuple[int, Header]] = (
            (seq if plan.by_seq else place, open_row(run_id, seq, digest, text))
            for place, seq, digest, run_id, text in page
        )
        return shared.bound_of(query, found)


_READ = """
SELECT r.seq, CAST(r.digest AS BLOB), CAST(r.header AS BLOB), CAST(b.body AS BLOB)
FROM records r LEFT JOIN bodies b ON b.ord = r.ord
WHERE r.run = ? AND r.seq BETWEEN ? AND ? ORDER BY r.seq LIMIT ?"""

_FIND = """
SELECT m.ord, r.seq, CAST(r.digest AS BLOB), u.run_id, CAST(r.header AS BLOB)
FROM marks m CROSS JOIN records r ON r.ord = m.ord CROSS JOIN runs u ON u.pk = r.run
WHERE"""
_FOUND = f"m.note = 0 AND r.state & {HIDDEN} = 0 ORDER BY m.ord DESC"
