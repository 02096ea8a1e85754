"""Pages that carry their own checksum, so that no damaged one is ever believed.

A bit that flips in a table of records is found by the records' digests. One that flips in an
index is not: SQLite looks where the index points and says that there is nothing. So the last four
bytes of every page of the database file hold a checksum of the page and of its number, written
and checked where the file is written and read. SQLite leaves these bytes alone
(`reserved bytes <https://sqlite.org/fileformat.html>`_), and other tools can read the file.

What SQLite sees of these bytes is zero. It copies them, so a page that another tool wrote (one
that opened the file after a crash and brought the log of the dead process in) has zero there as
well: it is taken as it is, without a check.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import apsw

__all__ = ["PAGE", "RESERVED", "checked_pages", "peek"]

PAGE = 4096
RESERVED = 4
"""Bytes at the end of a page that are the checksum's."""

_UNCHECKED = bytes(RESERVED)
_SMALLEST = 512
"""Less than this is a look at the file's header, not a page."""


def checked_pages() -> str:
    """The name under which SQLite knows this way to reach files; registers it at first use."""
    return _registered().name


@cache
def _registered() -> _Pages:
    # SQLite knows it for as long as something here holds it.
    return _Pages()


def peek(path: str, size: int) -> bytes:
    """The first bytes of a database file.

    It goes through SQLite: closing a file of one's own would drop the locks that the process
    holds on it, those of SQLite included.
    """
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        return file.xRead(size, 0)
    finally:
        file.xClose()


class _Pages(apsw.VFS):
    name = "holdfast-pages"

    def __init__(self) -> None:
        super().__init__(self.name, "", maxpathname=0)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        file = _CheckedFile if flags[0] & apsw.SQLITE_OPEN_MAIN_DB else apsw.VFSFile
        return file("", name, flags)


_read = apsw.VFSFile.xRead


class _CheckedFile(apsw.VFSFile):
    def xRead(self, amount: int, offset: int) -> bytes:
        # SQLite calls this for every page it does not have in memory.
        if amount < _SMALLEST:
            return _read(self, amount, offset)
        page = _read(self, PAGE, offset)
        if not page:
            return page
        if amount > PAGE or offset % PAGE or len(page) < PAGE:
            raise apsw.CorruptError(f"there is no whole page at byte {offset}")
        content, stored = page[:-RESERVED], page[-RESERVED:]
        if stored != crc32(content, offset // PAGE).to_bytes(RESERVED, "big"):
            if stored != _UNCHECKED:
                raise apsw.CorruptError(f"page {offset // PAGE + 1} does not match its checksum")
            return page[:amount]
        return (content + _UNCHECKED)[:amount]

    def xWrite(self, data: bytes, offset: int) -> None:
        if len(data) != PAGE:
            raise apsw.IOError(f"{len(data)} bytes are not a page")
        content = data[:-RESERVED]
        checksum = crc32(content, offset // PAGE).to_bytes(RESERVED, "big")
        super().xWrite(content + checksum, offset)
