"""The setting of a medium that has bodies compressed before they are stored."""

from __future__ import annotations

from typing import Literal, TypeAlias

from surehold.errors import UsageError

Compression: TypeAlias = Literal["gzip", "zstd"]


def read_compression(compress: object, *, on: Compression = "zstd") -> Compression | None:
    """The compression that a setting names, None for none; *on* is the one of True.

    >>> read_compression(True), read_compression("gzip"), read_compression(False)
    ('zstd', 'gzip', None)
    """
    known: dict[bool | str, Compression | None]
    known = {False: None, True: on, "gzip": "gzip", "zstd": "zstd"}
    if isinstance(compress, bool | str) and compress in known:
        return known[compress]
    raise UsageError(f"compress is {compress!r}", hint='give False, True, "gzip" or "zstd"')
