"""Journals in one SQLite file: the medium for one machine, and the default."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from holdfast.core.records import Header, Record, check_run_id, released, renewed, taken
from holdfast.errors import ConflictError, UsageError
from holdfast.storage.base import (
    Batch,
    Lease,
    Owner,
    Page,
    RecordQuery,
    RunInfo,
    RunQuery,
    Storage,
    about_run,
    matches,
    only_one,
)
from holdfast.storage.process import owner_is_dead
from holdfast.storage.shared import Inspection, check_head, checked_run
from holdfast.storage.sqlite.connections import Pool
from holdfast.storage.sqlite.index import COMMON_KIND, HIDDEN, Listing, id_key, listing
from holdfast.storage.sqlite.rows import (
    Run,
    head_of,
    info_of,
    lease_of,
    misplaced,
    missing,
    notes_of,
    one,
    open_row,
    record_of,
    rows,
    run_of,
    runs_listing,
)
from holdfast.storage.sqlite.writes import append_batch, delete_run, drop, put_lease

__all__ = ["SQLiteStorage"]

_PAGE = 256
_PAGE_BYTES = 1 << 22
_VACUUM = 256
"""Pages given back at once after an erasure; `compact` gives back all."""
_NO_BOUND = 1 << 62
_COMPRESSIONS: dict[bool | str, str | None] = {
    False: None,
    True: "gzip",
    "gzip": "gzip",
    "zstd": "zstd",
}


class SQLiteStorage(Storage):
    """Keeps journals in the SQLite file at *path*, which is made if it is missing.

    Threads, forks and other processes of the machine may use the file at the same time; it must
    not lie on a network file system. It can lease runs as well.

    A call waits up to *busy_timeout* seconds for another process that is writing. *compress* is
    how bodies are stored from now on: True or "gzip", or "zstd"; what is there stays readable.

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
        compress: bool | str = False,
        busy_timeout: float = 10.0,
    ) -> None:
        if str(path) in ("", ":memory:"):
            raise UsageError(f"{str(path)!r} is no file", hint="MemoryStorage() needs none")
        if busy_timeout < 0:
            raise UsageError(f"busy_timeout is {busy_timeout}", hint="give 0 or more seconds")
        if compress not in _COMPRESSIONS:
            raise UsageError(f"compress is {compress!r}", hint='give False, True, "gzip" or "zstd"')
        self.body_compression = _COMPRESSIONS[compress]
        self.path = Path(path).absolute()
        self._pool = Pool(self.path, busy_timeout)

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        sealed = [(batch, batch.opened()) for batch in batches]
        with self._pool.writing(len(sealed)) as db:
            return [append_batch(db, batch, records) for batch, records in sealed]

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        with self._pool.reading() as db:
            run = run_of(db, run_id)
        if run is None:
            return iter(())
        end = run.seq if last is None else min(last, run.seq)
        return self._read(run_id, run, max(first or 1, 1), end)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        run: Run | None = None
        with self._pool.reading() as db:
            if query.run_id is not None and (run := run_of(db, query.run_id)) is None:
                return iter(())
            plan = listing(query, run.pk if run else None)
            bound = _NO_BOUND if query.before is None else _bound(db, query, plan)
        if run is not None and plan.whole:
            return self._headers_of_run(query, plan, run, min(bound, run.seq + 1))
        return self._headers(query, plan, bound)

    def find(self, id_prefix: str) -> list[Header]:
        key = id_key(id_prefix)
        after = key[:-1] + bytes([key[-1] + 1])
        with self._pool.reading() as db:
            page = rows(db, f"{_FIND} m.key = ? AND {_FOUND}", (key,))
            if not page:
                page = rows(db, f"{_FIND} m.key >= ? AND m.key < ? AND {_FOUND}", (key, after))
        found: dict[tuple[str, str, str], Header] = {}
        for _, seq, digest, run_id, text in page:
            header = open_row(run_id, seq, digest, text)
            if not header.id.startswith(id_prefix):
                raise misplaced(run_id, seq)
            found.setdefault((header.id, header.run_id, header.scope), header)
        return list(found.values())

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self._pool.check_open()
        return self._runs(query)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._pool.snapshot(scope != "") as db:
            found = head_of(db, run_id)
            if found is None or not scope:
                return found
            info, _ = found
            plan = listing(RecordQuery(run_id=run_id, scope=scope), info.ordinal)
            for _, seq, digest, _, text in rows(db, plan.sql, plan.page(_NO_BOUND, 1)):
                return info, open_row(run_id, seq, digest, text)
            return info, None

    def page(
        self, query: RecordQuery, *, about: str | None = None, notes: Collection[str] = ()
    ) -> Page:
        if COMMON_KIND in notes:
            return super().page(query, about=about, notes=notes)
        if about is not None:
            with self._pool.reading() as db:
                is_run = one(db, "SELECT 1 FROM runs WHERE run_id = ?", (about,)) is not None
            query = about_run(query, about, is_run=is_run)
        headers = tuple(self.headers(query))
        found: list[Header] = []
        with self._pool.reading() as db:
            for run_id in sorted({header.run_id for header in headers}) if notes else ():
                found += notes_of(db, run_id, notes)
        return Page(headers, tuple(found))

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        with self._pool.writing() as db:
            run = run_of(db, run_id)
            if run is None:
                return 0
            if hide is None and erase is None:
                affected = delete_run(db, run)
            else:
                affected = drop(db, run, set(hide or ()), set(erase or ()))
            if erase or hide is None:
                db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()
            return affected

    def compact(self) -> None:
        with self._pool.maintaining() as db:
            for _ in range(0, db.pragma("freelist_count"), _VACUUM):
                db.execute(f"PRAGMA incremental_vacuum({_VACUUM})").fetchall()
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self._pool.close()

    def take_lease(self, run_id: str, owner: Owner, *, now: float, ttl: float) -> Lease:
        check_run_id(run_id)
        with self._pool.writing() as db:
            held = lease_of(db, run_id)
            dead = owner_is_dead(held)
            lease = taken(held, run_id, owner, now=now, ttl=ttl, owner_is_dead=dead)
            put_lease(db, lease)
            return lease

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        with self._pool.writing() as db:
            newest = renewed(lease_of(db, lease.run_id), lease, now=now, ttl=ttl)
            put_lease(db, newest)
            return newest

    def release_lease(self, lease: Lease) -> None:
        with self._pool.writing() as db:
            left = released(lease_of(db, lease.run_id), lease)
            if left is not None:
                put_lease(db, left)

    def lease_of(self, run_id: str) -> Lease | None:
        with self._pool.reading() as db:
            return lease_of(db, run_id)

    @classmethod
    def salvage(cls, path: str | os.PathLike[str]) -> list[str]:
        """Bring what can be read of a file that cannot be opened into a new one in its place.

        The damaged one is kept beside it. Tells what was done; `CheckpointManager.repair` then
        tells which records are missing.
        """
        from holdfast.storage.sqlite.repair import salvage

        return salvage(Path(path).absolute(), cls)

    def check_medium(self, *, repair: bool) -> list[str]:
        """Look for pages that cannot be read; with *repair*, salvage what can be into a new file.

        For that, no other process may have the file open.
        """
        from holdfast.storage.sqlite.repair import bad_pages

        with self._pool.reading():
            told = bad_pages(self.path)
        if told and repair:
            with self._pool.apart():
                told = self.salvage(self.path)
        return told

    def known_runs(self) -> list[str]:
        with self._pool.reading() as db:
            return [run_id for (run_id,) in rows(db, "SELECT run_id FROM runs ORDER BY pk", ())]

    def inspect(self, run_id: str) -> Inspection | None:
        from holdfast.storage.sqlite.repair import inspect_run

        with self._pool.snapshot() as db:
            run = run_of(db, run_id)
            return None if run is None else inspect_run(db, run)

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        from holdfast.storage.sqlite.repair import rewrite_run

        opened = checked_run(run_id, records)
        quarantine = self.path.with_name(f"{self.path.name}.quarantine")
        with self._pool.writing() as db:
            run = run_of(db, run_id)
            if run is None:
                raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
            check_head(run_id, head, run.seq)
            return str(rewrite_run(db, run, opened, hidden, quarantine))

    def restore_leases(self, leases: Iterable[Lease]) -> None:
        """Put leases of another file here, as they were there."""
        with self._pool.writing() as db:
            for lease in leases:
                put_lease(db, lease)

    def _read(self, run_id: str, run: Run, seq: int, end: int) -> Iterator[Record]:
        prev: str | None = None
        while seq <= end:
            page = self._page_of_records(run.pk, seq, end)
            for found, digest, text, body in page:
                if found != seq:
                    if not self._was_erased(run_id, run.pk, seq, found - 1):
                        return
                    prev = None
                record = record_of(run_id, found, digest, text, body)
                if prev is not None and record.header.prev != prev:
                    raise misplaced(run_id, found)
                prev = record.header.digest
                seq = found + 1
                yield record
            if not page:
                self._was_erased(run_id, run.pk, seq, end)
                return

    def _page_of_records(self, run: int, first: int, last: int) -> list[Any]:
        """Some of the records of a run, at least one if there is any."""
        page, size = [], 0
        with self._pool.reading() as db:
            cursor = db.execute(_READ, (run, first, last, _PAGE))
            for row in cursor:
                page.append(row)
                size += len(row[3] or b"")
                if size > _PAGE_BYTES:
                    break
            cursor.close()
        return page

    def _was_erased(self, run_id: str, run: int, first: int, last: int) -> bool:
        """True if the records that are missing were erased, False if their whole run was."""
        with self._pool.reading() as db:
            covered = one(
                db,
                "SELECT 1 FROM erased WHERE run = ? AND first <= ? AND last >= ?",
                (run, first, last),
            )
            gone = not covered and not one(db, "SELECT 1 FROM runs WHERE pk = ?", (run,))
        if not covered and not gone:
            raise missing(run_id, first)
        return not gone

    def _headers_of_run(
        self, query: RecordQuery, plan: Listing, run: Run, bound: int
    ) -> Iterator[Header]:
        run_id, left = query.run_id or "", query.limit
        size = _first_page(left)
        while bound > 1 and left != 0:
            page = self._page(plan, bound, size)
            for seq, _, digest, _, text in page:
                if seq != bound - 1 and not self._was_erased(run_id, run.pk, seq + 1, bound - 1):
                    return
                bound = seq
                if seq == run.seq and digest.hex() != run.digest:
                    raise misplaced(run_id, seq)
                if text is None:
                    continue
                header = open_row(run_id, seq, digest, text)
                if matches(header, query):
                    yield header
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            if not page:
                self._was_erased(run_id, run.pk, 1, bound - 1)
                return
            size = min(2 * size, _PAGE)

    def _headers(self, query: RecordQuery, plan: Listing, bound: int) -> Iterator[Header]:
        left = query.limit
        size = _first_page(left)
        while left != 0:
            page = self._page(plan, bound, size)
            for place, seq, digest, run_id, text in page:
                bound = place
                header = open_row(run_id, seq, digest, text)
                if matches(header, query):
                    yield header
                    left = None if left is None else left - 1
                    if left == 0:
                        return
            if len(page) < size:
                return
            size = min(2 * size, _PAGE)

    def _page(self, plan: Listing, bound: int, size: int) -> list[Any]:
        with self._pool.reading() as db:
            return rows(db, plan.sql, plan.page(bound, size))

    def _runs(self, query: RunQuery) -> Iterator[RunInfo]:
        sql, values = runs_listing(query)
        bound, left = query.before, query.limit
        while left is None or left > 0:
            size = _first_page(left)
            values |= {"bound": _NO_BOUND if bound is None else bound, "size": size}
            with self._pool.reading() as db:
                page = [info_of(*row)[0] for row in rows(db, sql, values)]
            yield from page
            if len(page) < size:
                return
            bound = page[-1].ordinal
            left = None if left is None else left - len(page)


_READ = """
SELECT r.seq, r.digest, CAST(r.header AS BLOB), b.body
FROM records r LEFT JOIN bodies b ON b.ord = r.ord
WHERE r.run = ? AND r.seq BETWEEN ? AND ? ORDER BY r.seq LIMIT ?"""

_FIND = """
SELECT m.ord, r.seq, r.digest, u.run_id, CAST(r.header AS BLOB)
FROM marks m CROSS JOIN records r ON r.ord = m.ord CROSS JOIN runs u ON u.pk = r.run
WHERE"""
_FOUND = f"m.note = 0 AND r.state & {HIDDEN} = 0 ORDER BY m.ord DESC"


def _first_page(limit: int | None) -> int:
    return _PAGE if limit is None else min(limit, _PAGE)


def _bound(db: apsw.Connection, query: RecordQuery, plan: Listing) -> int:
    """Where the record that *query* calls `before` stands, hidden or not."""
    before = query.before or ""
    found: dict[tuple[str, str], int] = {}
    for place, seq, digest, run_id, text in rows(
        db, f"{_FIND} m.key = ? ORDER BY m.ord", (id_key(before),)
    ):
        header = open_row(run_id, seq, digest, text)
        if (
            query.run_id in (None, run_id)
            and query.name in (None, header.name)
            and query.scope in (None, header.scope)
        ):
            found[run_id, header.scope] = seq if plan.by_seq else place
    return only_one(found, query.before)
