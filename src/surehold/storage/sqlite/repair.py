"""Damage in a SQLite file: changed rows, and pages that cannot be read.

Rows are put right within the file. A page that cannot be read takes rows of any table with it,
and SQLite cannot write beside it safely; so all that can be read is brought into a new file, which
takes the place of the old one. The old one is kept.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from surehold.core.records import (
    Record,
    chained,
    gaps_between,
    medium_name,
    open_header,
    open_record,
)
from surehold.errors import CorruptError, StorageUnavailableError
from surehold.storage.base import Batch, Inspection, Lease, run_of
from surehold.storage.rows import HIDDEN, NOTE, record_keys, record_of, state_of
from surehold.storage.shared import Head, Salvage, first_head, moment, rebuilt_head
from surehold.storage.sqlite.page_checksums import PAGE, peek, strictly_checked_pages
from surehold.storage.sqlite.rows import lease_of, one, rows
from surehold.storage.sqlite.schema import sync_directory
from surehold.storage.sqlite.writes import insert_record, put_head

if TYPE_CHECKING:
    from surehold.storage.sqlite.storage import SQLiteStorage

_FEW = 20
_HEADER, _PAGES_AT = 100, 28
"""The size of a database's header, and where in it the number of pages stands."""
_RECORDS = """
SELECT r.ord, r.seq, r.state, CAST(r.digest AS BLOB), CAST(r.header AS BLOB), CAST(b.body AS BLOB)
FROM records r LEFT JOIN bodies b ON b.ord = r.ord WHERE r.run = ? ORDER BY r.seq"""
_AT = "SELECT state, CAST(digest AS BLOB), CAST(header AS BLOB) FROM records WHERE ord = ?"


def inspect_run(db: apsw.Connection, head: Head) -> Inspection:
    """Read all that is whole of a run."""
    found = Salvage(head.run_id)
    places: dict[int, int] = {}
    for place, seq, state, *row in rows(db, _RECORDS, (head.ordinal,)):
        places[seq] = place
        found.hidden |= {seq} if state & HIDDEN else set()
        found.add(partial(record_of, head.run_id, seq, *row))
    is_newest = found.ends_at(head.seq, head.digest) and not found.problems
    if is_newest and rebuilt_head(head, found.records, found.hidden) != head:
        found.problems.append(f"the head of run {head.run_id!r} does not fit its records")
    if not all(_is_marked(db, head, places, record, found.hidden) for record in found.records):
        found.problems.append(f"run {head.run_id!r} is not indexed as it should be")
    return found.inspection(head.seq)


def lost_runs(db: apsw.Connection) -> dict[str, Head]:
    """The runs that have records and are not in the list of runs, with their heads."""
    found: dict[str, Head] = {}
    for (run,) in rows(db, _UNLISTED, ()):
        records, hidden = [], set()
        for _, seq, state, digest, text, body in rows(db, _RECORDS, (run,)):
            with suppress(CorruptError):
                header = open_header(text, digest.hex())
                records.append(record_of(header.run_id, seq, digest, text, body))
                hidden |= {seq} if state & HIDDEN else set()
        if records:
            first = records[0].header
            found[first.run_id] = rebuilt_head(first_head(first, run), records, hidden)
    return found


def list_run(db: apsw.Connection, head: Head) -> None:
    """Put a run that has records back into the list of runs."""
    values = (
        *(head.ordinal, head.run_id, head.name, head.status, head.seq, head.digest, head.latest),
        *(head.checkpoints, head.stored, head.started_at.isoformat(), head.saved_at.isoformat()),
    )
    db.execute(
        "INSERT INTO runs(pk, run_id, name, status, seq, digest, latest, checkpoints, stored,"
        f" started_at, saved_at) VALUES ({', '.join('?' * len(values))})",
        values,
    )


_UNLISTED = """
WITH RECURSIVE found(run) AS (
    SELECT min(run) FROM records UNION ALL
    SELECT (SELECT min(run) FROM records WHERE run > found.run) FROM found WHERE run IS NOT NULL
) SELECT run FROM found WHERE run IS NOT NULL AND run NOT IN (SELECT pk FROM runs)"""


def _is_marked(
    db: apsw.Connection,
    head: Head,
    places: Mapping[int, int],
    record: Record,
    hidden: Collection[int],
) -> bool:
    header = record.header
    keys = record_keys(header, head.ordinal)
    note = NOTE if header.frame == "note" else 0
    mark = "SELECT 1 FROM marks WHERE key = ? AND note = ? AND ord = ?"
    return all(
        one(db, mark, (key, note, places[header.seq])) is not None
        for key in (keys[:1] if header.seq in hidden else keys)
    )


def rewrite_run(
    db: apsw.Connection,
    head: Head,
    records: Sequence[Record],
    hidden: Collection[int],
    quarantine: Path,
) -> Path:
    """Make a run just these records, in a transaction; return the others' place."""
    wanted = {record.header.seq: record for record in records}
    found = rows(db, _RECORDS, (head.ordinal,))
    aside = [row for row in found if not _is(row, wanted.get(row[1]))]
    kept = _write_aside(quarantine, head.run_id, aside)
    db.execute(
        "DELETE FROM marks WHERE ord IN (SELECT ord FROM records WHERE run = ?)", (head.ordinal,)
    )
    for place, *_ in found:
        db.execute("DELETE FROM records WHERE ord = ?", (place,))
        db.execute("DELETE FROM bodies WHERE ord = ?", (place,))
    db.execute("DELETE FROM erased WHERE run = ?", (head.ordinal,))
    if not records:
        db.execute("DELETE FROM runs WHERE pk = ?", (head.ordinal,))
        return kept
    # A record keeps its place among those of all runs; what was not there before is new.
    places = {row[3].hex(): row[0] for row in found}
    for seq, record in wanted.items():
        state = state_of(record.header) | (HIDDEN if seq in hidden else 0)
        insert_record(db, head.ordinal, record, state, place=places.get(record.header.digest))
    for first, last in gaps_between(wanted):
        db.execute("INSERT INTO erased VALUES (?, ?, ?)", (head.ordinal, first, last))
    put_head(db, head, rebuilt_head(head, records, hidden))
    return kept


def _is(row: tuple[Any, ...], record: Record | None) -> bool:
    _, _, _, digest, text, body = row
    here = (digest.hex(), text, body)
    return record is not None and here == (record.header.digest, record.text, record.body)


def _write_aside(quarantine: Path, run_id: str, aside: Sequence[tuple[Any, ...]]) -> Path:
    """Keep rows as lines of JSON, each with its bytes as they were found."""
    quarantine.mkdir(0o700, exist_ok=True)
    path = quarantine / f"{medium_name(run_id)}-{moment()}.jsonl"
    lines = [
        {
            "run_id": run_id,
            "seq": seq,
            "hidden": bool(state & HIDDEN),
            "digest": digest.hex(),
            "header": base64.b64encode(text or b"").decode(),
            "body": base64.b64encode(body or b"").decode(),
        }
        for _, seq, state, digest, text, body in aside
    ]
    fresh = path.with_name(f"{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as file:
        file.writelines(msgspec.json.encode(line) + b"\n" for line in lines)
        file.flush()
        os.fsync(fd)
    os.replace(fresh, path)
    sync_directory(path.parent)
    return path


def bad_pages(path: Path) -> list[str]:
    """Problems that SQLite itself finds in the file."""
    # A new connection: one that is in use may remember pages from before they were damaged.
    db = apsw.Connection(str(path), vfs=strictly_checked_pages())
    try:
        found = rows(db, f"PRAGMA integrity_check({_FEW})", ())
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return [str(error)]
    finally:
        db.close(force=True)
    return [] if found == [("ok",)] else [str(text) for (text,) in found]


def salvage(path: Path, open_new: type[SQLiteStorage]) -> list[str]:
    """Bring what can be read of the file at *path* into a new one; report it.

    Nobody else may have the file open. If nothing can be read, the file does not change.
    """
    name = f"{path.name}.damaged-{moment()}"
    kept, fresh = path.with_name(name), path.with_name(f"{path.name}.salvaged")
    _remove(fresh)
    db = _open_alone(path)
    try:
        with open_new(fresh) as target, _legible(path, db, fresh) as source:
            pages = _Pages(source)
            count = _bring_over(pages, target)
            told = list(_shortened(pages, target))
        if not count:
            _remove(fresh)
            raise CorruptError(
                f"nothing in {path} can be read",
                hint="bring a copy of it back; this file was left as it is",
                path=str(path),
            )
        # The path is never without a file: whoever opened it then would begin an empty one. And
        # the log of the old file must not be taken for one of the new.
        os.link(path, kept)
        if os.path.exists(f"{path}-wal"):
            os.rename(f"{path}-wal", f"{kept}-wal")
        os.rename(fresh, path)
        sync_directory(path.parent)
    finally:
        db.close(force=True)
    return [f"brought {count} records into a new file; the damaged one is kept as {kept}", *told]


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _open_alone(path: Path) -> apsw.Connection:
    """The damaged file, kept from others until closed; its pages are not checked.

    Records whose digest fails are not taken from it.
    """
    db = apsw.Connection(str(path))
    try:
        # Its end must not bring in, or remove, a log that is not its own any more.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.pragma("locking_mode", "exclusive")
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")
    except apsw.BusyError as error:
        db.close(force=True)
        raise StorageUnavailableError(
            f"{path} has pages that cannot be read, and another process has it open",
            hint="stop whatever uses it, then call repair() again",
            path=str(path),
        ) from error
    except apsw.Error:
        # Then no other process can use it either.
        return db
    return db


@contextmanager
def _legible(path: Path, db: apsw.Connection, fresh: Path) -> Iterator[apsw.Connection]:
    """The damaged file, or a copy with its full length and the schema of *fresh*.

    SQLite reads no part of a file that is shorter than it says it is, nor of one whose schema it
    cannot parse.
    """
    header = peek(str(path), _HEADER)
    size = int.from_bytes(header[_PAGES_AT : _PAGES_AT + 4]) * PAGE
    is_short = len(header) == _HEADER and path.stat().st_size < size
    with closing(apsw.Connection(str(fresh), flags=apsw.SQLITE_OPEN_READONLY)) as new:
        schema = _schema(new)
    if not is_short and _schema(db) == schema:
        yield db
        return
    copy = path.with_name(f"{path.name}.copy")
    _remove(copy)
    try:
        for suffix in ("", "-wal"):
            if os.path.exists(f"{path}{suffix}"):
                shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
        if is_short:
            os.truncate(copy, size)
        # The second connection parses what the first one wrote.
        with closing(apsw.Connection(str(copy))) as first, suppress(apsw.Error):
            if _schema(first) != schema:
                first.executemany(
                    "UPDATE sqlite_schema SET type = ?2, name = ?3, tbl_name = ?4, sql = ?5"
                    " WHERE rowid = ?1",
                    schema,
                )
        with closing(apsw.Connection(str(copy))) as second:
            yield second
    finally:
        _remove(copy)


def _schema(db: apsw.Connection) -> list[tuple[Any, ...]]:
    """The rows that say what tables and indexes there are, but for their places."""
    db.pragma("writable_schema", True)  # lets a row be read whose text is damaged
    with suppress(apsw.Error, UnicodeDecodeError):
        return rows(db, "SELECT rowid, type, name, tbl_name, sql FROM sqlite_schema", ())
    return []


class _Pages:
    """A damaged file, read row by row: what cannot be read is passed over."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def _find(self, sql: str, *values: Any) -> Any:
        try:
            return one(self._db, sql, values)
        except (apsw.Error, UnicodeDecodeError):
            return None

    def _each(self, sql: str) -> Iterator[Any]:
        """The rows up to the first that cannot be read."""
        with suppress(apsw.Error, UnicodeDecodeError):
            for row in self._db.execute(sql):
                yield row[0]

    def _places(self) -> list[int]:
        """Places of records, from every table that knows, read from both ends."""
        by_run = "records INDEXED BY records_of_run WHERE run > 0 ORDER BY run"
        found: set[Any] = set()
        for source in ("records ORDER BY ord", "bodies ORDER BY ord", by_run):
            found.update(self._each(f"SELECT ord FROM {source}"))
            found.update(self._each(f"SELECT ord FROM {source} DESC"))
        found.update(self._each("SELECT ord FROM marks"))
        return sorted(place for place in found if isinstance(place, int))

    def records(self) -> Iterator[tuple[int, Record]]:
        """Every whole record with its state, as they were stored."""
        for place in self._places():
            row = self._find(_AT, place)
            body = self._find("SELECT CAST(body AS BLOB) FROM bodies WHERE ord = ?", place)
            match row, body:
                case (int(state), bytes(digest), bytes(text)), (bytes(stored),):
                    with suppress(CorruptError):
                        yield state, open_record(text, digest.hex(), stored)

    def heads(self) -> Iterator[tuple[str, int]]:
        """The runs that there were, and the newest seq of each."""
        for run_id in self._each("SELECT run_id FROM runs ORDER BY pk"):
            match self._find("SELECT seq FROM runs WHERE run_id = ?", run_id):
                case (int(seq),) if isinstance(run_id, str):
                    yield run_id, seq

    def leases(self) -> Iterator[Lease]:
        for run_id in self._each("SELECT run_id FROM leases"):
            with suppress(apsw.Error, UnicodeDecodeError, msgspec.MsgspecError, TypeError):
                lease = lease_of(self._db, run_id)
                if lease is not None:
                    yield lease


def _bring_over(source: _Pages, target: SQLiteStorage) -> int:
    runs: dict[str, dict[int, Record]] = {}
    hidden: dict[str, set[int]] = {}
    for state, record in source.records():
        header = record.header
        runs.setdefault(header.run_id, {}).setdefault(header.seq, record)
        if state & HIDDEN:
            hidden.setdefault(header.run_id, set()).add(header.seq)
    for run_id, records in runs.items():
        whole = chained([records[seq] for seq in sorted(records)])
        target.append(list(_batches(run_id, whole, hidden.get(run_id, set()))))
    found = {lease.run_id: lease for lease in source.leases()}
    for run_id, records in runs.items():
        # An epoch that was lost must not be given again: the records tell of the later ones.
        epoch = max(record.header.epoch for record in records.values())
        if epoch > (found[run_id].epoch if run_id in found else 0):
            found[run_id] = Lease(run_id, epoch, None, 0.0)
    target.restore_leases(found.values())
    return sum(map(len, runs.values()))


def _shortened(source: _Pages, target: SQLiteStorage) -> Iterator[str]:
    """Report the runs that lost their newest records, or all of them."""
    for run_id, seq in source.heads():
        run = run_of(target, run_id)
        if run is None:
            yield f"run {run_id!r} is lost, all {seq} records of it"
        elif run.seq < seq:
            yield f"run {run_id!r} has lost its end: head set to record {run.seq}, of {seq}"


def _batches(run_id: str, records: Sequence[Record], hidden: set[int]) -> Iterator[Batch]:
    gaps = frozenset(gaps_between(record.header.seq for record in records))
    hide = tuple(record.header.seq for record in records if record.header.seq in hidden)
    yield Batch(run_id=run_id, records=tuple(records), hide=hide, erased=gaps)
