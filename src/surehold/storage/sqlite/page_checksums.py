"""Pages with a checksum of their own, so that damage is always noticed.

A bit that flips in a table of records is found by the records' digests. One that flips in an
index is not: SQLite looks where the index points and says that there is nothing. So the last four
bytes of every page of the database file hold a checksum of the page and of its number, written
and checked where the file is written and read. SQLite leaves these bytes alone
(`reserved bytes <https://sqlite.org/fileformat.html>`_), and other tools can read the file.

SQLite sees zeros in these bytes and copies them. A page that another tool wrote (one that opened
the file after a crash and brought the log of the dead process in) holds zeros too: such a page is
accepted without a check.

A page that does not match is an error for every query that needs it, unless all that it can hold
proves itself: then only the damaged record is lost (see `containment`).
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

import apsw

PAGE = 4096
RESERVED = 4
"""Bytes at the end of a page that are the checksum's."""

_UNCHECKED = bytes(RESERVED)
_SMALLEST = 512
"""Less than this is a look at the file's header, not a page."""


def checked_pages() -> str:
    """The name of the VFS that checks pages; registers it at first use."""
    return _registered("surehold-pages", _CheckedFile).name


def strictly_checked_pages() -> str:
    """The same for a reader that is to meet every page that does not match."""
    return _registered("surehold-pages-strict", _StrictFile).name


@cache
def _registered(name: str, file: type[_StrictFile]) -> _Pages:
    # SQLite knows it for as long as something here holds it.
    return _Pages(name, file)


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
    def __init__(self, name: str, file: type[_StrictFile]) -> None:
        super().__init__(name, "", maxpathname=0)
        self.name = name
        self._file = file

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if not flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            return apsw.VFSFile("", name, flags)
        opened = self._file("", name, flags)
        opened.path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        return opened


def page_matches(page: bytes, index: int) -> bool:
    """True if the page at *index*, counted from 0, matches the checksum in it."""
    return page[-RESERVED:] == crc32(page[:-RESERVED], index).to_bytes(RESERVED, "big")


_read = apsw.VFSFile.xRead


class _StrictFile(apsw.VFSFile):
    path = ""

    def xRead(self, amount: int, offset: int) -> bytes:
        # SQLite calls this for every page it does not have in memory.
        if amount < _SMALLEST:
            return _read(self, amount, offset)
        page = _read(self, PAGE, offset)
        if not page:
            return page
        if amount > PAGE or offset % PAGE or len(page) < PAGE:
            raise apsw.CorruptError(f"there is no whole page at byte {offset}")
        content = page[:-RESERVED]
        if not page_matches(page, offset // PAGE):
            if page.endswith(_UNCHECKED):
                return page[:amount]
            number = offset // PAGE + 1
            if not self._is_contained(number, content):
                raise apsw.CorruptError(f"page {number} does not match its checksum")
        return (content + _UNCHECKED)[:amount]

    def _is_contained(self, number: int, content: bytes) -> bool:
        return False

    def xWrite(self, data: bytes, offset: int) -> None:
        if len(data) != PAGE:
            raise apsw.IOError(f"{len(data)} bytes are not a page")
        content = data[:-RESERVED]
        checksum = crc32(content, offset // PAGE).to_bytes(RESERVED, "big")
        super().xWrite(content + checksum, offset)


class _CheckedFile(_StrictFile):
    def _is_contained(self, number: int, content: bytes) -> bool:
        from surehold.storage.sqlite.containment import is_contained

        return is_contained(self.path, number, content)
