"""The setting of a medium that has bodies compressed before they are stored."""

from __future__ import annotations

from surehold.errors import UsageError

_KNOWN: dict[bool | str, str | None] = {
    **{False: None, True: "zstd"},
    **{"gzip": "gzip", "zstd": "zstd"},
}


def read_compression(compress: bool | str) -> str | None:
    """The compression that a setting names, None for none.

    >>> read_compression(True), read_compression("gzip"), read_compression(False)
    ('zstd', 'gzip', None)
    """
    if compress not in _KNOWN:
        raise UsageError(f"compress is {compress!r}", hint='give False, True, "gzip" or "zstd"')
    return _KNOWN[compress]
