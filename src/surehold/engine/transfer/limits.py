"""Limits within which a file from an untrusted source is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from surehold.core.records import Record
from surehold.core.values import DEPTH_LIMIT

FREE_BYTES = 1 << 20
"""Bytes that may be unpacked whatever the ratio."""


class ImportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for a file to import, checked before anything is unpacked."""

    total_bytes: int = 1 << 30
    """Bytes of the file, of all its records, and of all their bodies when unpacked."""
    record_bytes: int = 64 << 20
    """Bytes of one record with its body unpacked."""
    records: int = 250_000
    ratio: int = 200
    """Largest factor by which data may grow when unpacked, beyond the first MiB."""
    depth: int = 4 * DEPTH_LIMIT
    """Nesting of JSON; a level of a value takes up to three of JSON."""


LIMITS = ImportLimits()
_MOST = 1 << 62
UNLIMITED = ImportLimits(
    total_bytes=_MOST, record_bytes=_MOST, records=_MOST, ratio=_MOST, depth=LIMITS.depth
)
"""For files from a trusted source."""


class Excess:
    """Finds the limits that would refuse a file while it is written.

    >>> excess = Excess(ImportLimits(records=1))
    >>> excess.add(100, 100, 50), excess.add(100, 2 << 20, 50)
    (None, None)
    >>> sorted(excess.limits)
    ['ratio', 'records']
    """

    def __init__(self, limits: ImportLimits) -> None:
        self._allowed = limits
        self.records = self.bytes = 0
        self._size = self._stored = 0
        self.limits: set[str] = set()

    def counted(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield *records* as they are, and count them."""
        for record in records:
            self.add(len(record.text), record.header.size, record.header.stored)
            yield record

    def add(self, text: int, size: int, stored: int) -> None:
        """Count a record by the bytes of its header, of its body and of its stored body."""
        allowed = self._allowed
        self.records += 1
        self._size += size
        self._stored += stored
        self.bytes += text + stored
        if text + max(size, stored) > allowed.record_bytes:
            self.limits.add("record_bytes")
        if self.records > allowed.records:
            self.limits.add("records")
        if max(self._size, self.bytes) > allowed.total_bytes:
            self.limits.add("total_bytes")
        for unpacked, packed in ((size, stored), (self._size, self._stored)):
            if unpacked > max(FREE_BYTES, packed * allowed.ratio):
                self.limits.add("ratio")
