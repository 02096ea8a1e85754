"""Damaged pages that may still be read, because digests verify their contents.

A record verifies its body, and a digest verifies the record. If the b-tree is sound and only such
content is damaged, other records, runs and processes need not suffer from it. Damaged pages of
other tables and indexes are refused, because nobody would notice a missing row.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress

import apsw

from surehold.core.values import remember
from surehold.errors import CorruptError
from surehold.storage.rows import HIDDEN, NOTE, micros, open_row, record_keys, state_of
from surehold.storage.sqlite.rows import one, rows

logger = logging.getLogger("surehold.storage")

_REMEMBERED = 1024
_LEAF = 0x0D
_known: OrderedDict[tuple[str, int, bytes], bool] = OrderedDict()


def is_contained(path: str, number: int, content: bytes) -> bool:
    """True if damage in page *number* with *content* is found record by record."""
    key = path, number, content
    found = _known.get(key) if number > 1 else False  # the first holds no records
    if found is None:
        found = _examine(path, number, content)
        remember(_known, key, found, most=_REMEMBERED)
        if found:
            logger.warning(
                "%s: page %d does not match its checksum; only records on it are damaged", *key[:2]
            )
    return found


def _examine(path: str, number: int, content: bytes) -> bool:
    # Its pages are not checked: this is called in the middle of such a check.
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        page = one(db, "SELECT name, pagetype FROM dbstat WHERE pageno = ?", (number,))
        if page not in [("bodies", "leaf"), ("bodies", "overflow"), ("records", "leaf")]:
            return False
        if rows(db, f"PRAGMA integrity_check({page[0]})", ()) != [("ok",)]:
            return False
        return page[0] == "bodies" or _records_tell(db, content)
    except (apsw.Error, UnicodeDecodeError, TypeError):
        return False  # what is damaged goes deeper than a record
    finally:
        db.close(force=True)


def _records_tell(db: apsw.Connection, content: bytes) -> bool:
    """True if some record on the page is damaged and all others are proved."""
    damaged = 0
    for place in _places(content):
        row = one(db, _ROW, (place,))
        if row is None:
            return False
        run, run_id, seq, state, at, digest, text = row
        try:
            header = open_row(run_id, seq, digest, text)
        except CorruptError:
            damaged += 1
            continue
        if (state & ~HIDDEN, at) != (state_of(header), micros(header.saved_at)):
            return False
        note = NOTE if header.frame == "note" else 0
        shown = [one(db, _MARK, (key, note, place)) for key in record_keys(header, run)]
        # A hidden record is known by its id alone.
        if not shown[0] or any(bool(mark) == bool(state & HIDDEN) for mark in shown[1:]):
            return False
    return damaged > 0


_ROW = """
SELECT r.run, u.run_id, r.seq, r.state, r.at, CAST(r.digest AS BLOB), CAST(r.header AS BLOB)
FROM records r JOIN runs u ON u.pk = r.run WHERE r.ord = ?"""
_MARK = "SELECT 1 FROM marks WHERE key = ? AND note = ? AND ord = ?"


def _places(content: bytes) -> Iterator[int]:
    """The rowids of the cells of a leaf page (https://sqlite.org/fileformat.html)."""
    if content[0] != _LEAF:
        return
    cells = int.from_bytes(content[3:5], "big")
    for cell in range(cells):
        at = 8 + 2 * cell
        start = int.from_bytes(content[at : at + 2], "big")
        with suppress(IndexError):
            _, start = _varint(content, start)
            yield _varint(content, start)[0]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where the next one starts."""
    value = 0
    for count in range(9):
        byte = content[at + count]
        if count == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError("unreachable")
