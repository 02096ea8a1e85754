"""One run in a database file from an untrusted source.

SQLite's advice for such files (https://sqlite.org/security.html) is followed, and more: SQLite sees
no page before all match their checksums, can only read, and reads from tables only once they were
found to be ours. Its work is limited by the size of the file, so pages that refer to each other in
circles end in an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from surehold.errors import CorruptError
from surehold.storage.rows import HIDDEN
from surehold.storage.sqlite.page_checksums import PAGE, page_matches, strictly_checked_pages
from surehold.storage.sqlite.schema import check_header, is_ours

_PAGES_AT_ONCE = 256
_STEPS = 1000
"""SQLite's operations between two looks at how many are left."""
_STEPS_FOR_SCHEMA = 50_000
_STEPS_PER_BYTE = 4
_LONGEST_STATEMENT = 10_000
_LIMITS = {
    apsw.SQLITE_LIMIT_ATTACHED: 0,
    apsw.SQLITE_LIMIT_COLUMN: 64,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 32,
    apsw.SQLITE_LIMIT_SQL_LENGTH: _LONGEST_STATEMENT,
    apsw.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_OFF = (
    apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA,
    apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER,
    apsw.SQLITE_DBCONFIG_ENABLE_VIEW,
)


class UntrustedRecord(NamedTuple):
    """The parts of a record as the file has them."""

    digest: str
    text: bytes
    body: bytes
    hidden: bool


class UntrustedRun(NamedTuple):
    """The run of a file, as its row tells of it."""

    run_id: str
    seq: int
    digest: str
    """Those of its newest record."""
    checkpoints: int
    """Visible ones."""
    records: Callable[[], Iterator[UntrustedRecord]]
    """Gives the records in the order of their seqs, one at a time."""


@contextmanager
def open_untrusted(path: Path, *, longest: int) -> Iterator[UntrustedRun]:
    """Open the file of one run to be read; anything else is a `CorruptError`.

    Its fact `too_long` says that a value has more than *longest* bytes. The caller has seen to it
    that *path* is a regular file of a size that may be read.
    """
    size = _check_pages(path)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    uri = f"{path.absolute().as_uri()}?immutable=1"
    with _refusals(path):
        db = apsw.Connection(uri, flags=flags, vfs=strictly_checked_pages())
        try:
            left = _restrict(db, longest)
            if not is_ours(db):
                raise _refused(path, "has other tables than an export")
            left[0] = _STEPS_FOR_SCHEMA + size * _STEPS_PER_BYTE
            yield _run(db, path)
        finally:
            db.close(force=True)


def _check_pages(path: Path) -> int:
    """Check every page of a file that nobody writes to; return its size."""
    # By SQLite's own functions: closing another handle would drop its locks on the file.
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW
    log = f"{path}-wal"
    with _refusals(path):
        file = apsw.VFSFile("", str(path), [flags, 0])
        try:
            pages = check_header(path, file.xRead(PAGE, 0))
            size = file.xFileSize()
            if size != pages * PAGE:
                raise _refused(path, "is cut short, or its end was altered")
            for start in range(0, pages, _PAGES_AT_ONCE):
                some = file.xRead(PAGE * min(_PAGES_AT_ONCE, pages - start), start * PAGE)
                for number in range(len(some) // PAGE):
                    if not page_matches(some[number * PAGE :][:PAGE], start + number):
                        what = f"is damaged: page {start + number + 1} does not match its checksum"
                        raise _refused(path, what)
        finally:
            file.xClose()
    if os.path.exists(log) and os.path.getsize(log):
        hint = f"close what uses it, then: surehold -s sqlite:///{path} runs"
        raise CorruptError(f"{path} was not closed: there is {log}", hint=hint, path=str(path))
    return size


def _restrict(db: apsw.Connection, longest: int) -> list[int]:
    """Restrict what SQLite does; the item returned is the number of operations left."""
    left = [_STEPS_FOR_SCHEMA]

    def is_spent() -> bool:
        left[0] -= _STEPS
        return left[0] < 0

    db.set_progress_handler(is_spent, _STEPS)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    for switch in _OFF:
        db.config(switch, 0)
    for limit, value in _LIMITS.items():
        db.limit(limit, value)
    db.limit(apsw.SQLITE_LIMIT_LENGTH, min(longest + _LONGEST_STATEMENT, (1 << 31) - 1))
    for setting, value in (("cell_size_check", 1), ("mmap_size", 0), ("temp_store", 2)):
        db.pragma(setting, value)
    return left


def _run(db: apsw.Connection, path: Path) -> UntrustedRun:
    found: list[Any] = db.execute(
        "SELECT pk, run_id, seq, digest, checkpoints FROM runs LIMIT 2"
    ).fetchall()
    if len(found) != 1 or [type(value) for value in found[0]] != [int, str, int, str, int]:
        hint = f"surehold -s sqlite:///{path} copy --to URL copies the runs of a storage"
        raise CorruptError(f"{path} is a storage, but not of one run", hint=hint, path=str(path))
    key, run_id, seq, digest, checkpoints = found[0]

    def records() -> Iterator[UntrustedRecord]:
        with _refusals(path):
            for row in db.execute(_RECORDS, (key,)):
                yield _record(path, *row)

    return UntrustedRun(run_id, seq, digest, checkpoints, records)


_RUNS = "SELECT pk, run_id, seq, digest, checkpoints FROM runs"
_RECORDS = """
SELECT CAST(r.digest AS BLOB), CAST(r.header AS BLOB), CAST(b.body AS BLOB), r.state
FROM records r INDEXED BY records_of_run LEFT JOIN bodies b ON b.ord = r.ord
WHERE r.run = ? ORDER BY r.seq"""


def _record(path: Path, digest: Any, text: Any, body: Any, state: Any) -> UntrustedRecord:
    parts = [type(part) for part in (digest, text, body, state)]
    if parts != [bytes, bytes, bytes, int]:
        raise _refused(path, "has a record that is not whole")
    return UntrustedRecord(digest.hex(), text, body, bool(state & HIDDEN))


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn what SQLite says of the file into its refusal."""
    try:
        yield
    except apsw.TooBigError as error:
        raise CorruptError(f"{path}: {error}", path=str(path), too_long=True) from error
    except apsw.InterruptError as error:
        raise _refused(path, "takes more work to read than its size explains") from error
    except (apsw.Error, UnicodeDecodeError) as error:
        raise _refused(path, f"cannot be read: {error}") from error


def _refused(path: Path, what: str) -> CorruptError:
    hint = "get the file again from where it came from"
    return CorruptError(f"{path} {what}", hint=hint, path=str(path))
