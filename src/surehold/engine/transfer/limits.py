"""Limits within which a file from an untrusted source is read."""

from __future__ import annotations

import msgspec

from surehold.core.values import DEPTH_LIMIT


class ImportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for a file to import. What exceeds them is refused before it is unpacked."""

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
