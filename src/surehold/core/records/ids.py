"""Names of runs: those that are allowed, and safe ones for a medium."""

from __future__ import annotations

import hashlib
import re

from surehold.errors import UsageError

_SAFE = r"[a-z0-9][a-z0-9_-]{0,99}"
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))]
)
_LONGEST = 1 << 16


def check_run_id(run_id: str, what: str = "run_id") -> str:
    """Return *run_id* if it can name a run; else a `UsageError` with the reason."""
    if not isinstance(run_id, str):
        raise UsageError(f"{what} must be a string, not {type(run_id).__name__}")
    if not run_id:
        raise UsageError(f"{what} is empty", hint="give it at least one character")
    if "\0" in run_id:
        raise UsageError(f"{what} contains a NUL character", hint="take it out")
    if len(run_id) > _LONGEST:
        raise UsageError(f"{what} is {len(run_id):,} characters long", hint="65,536 is the limit")
    try:
        run_id.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not valid Unicode: it holds half a surrogate pair") from None
    return run_id


def medium_name(name: str) -> str:
    """The name of *name* where names are paths: itself if harmless, else a hash.

    A hashed name starts with ``=``, which no harmless name does, so the two never meet.

    >>> medium_name("agent-1"), medium_name("../x")[:9]
    ('agent-1', '=d6b96a97')
    """
    if re.fullmatch(_SAFE, name) and name not in _DEVICES:
        return name
    return "=" + hashlib.sha256(name.encode()).hexdigest()[:40]
