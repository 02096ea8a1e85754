"""Text as servers store it, and the number of a run in their indexes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from operator import methodcaller

to_bytes: Callable[[str], bytes] = methodcaller("encode", "utf-8", "surrogatepass")
"""Text as it is stored: any Python string, lone surrogates included."""

to_text: Callable[[bytes], str] = methodcaller("decode", "utf-8", "surrogatepass")
"""Decode the output of `to_bytes`."""


@lru_cache(maxsize=1024)
def run_number(run_id: str) -> int:
    """A number for the run in its facets' keys, known before it has an ordinal."""
    return int.from_bytes(hashlib.sha256(to_bytes(run_id)).digest()[:8])
