"""The outside world of a trial: a file that calls append to themselves, synced line by line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Line", "Outside"]


class Line(NamedTuple):
    """A call that began or ended, seen from outside."""

    what: str
    """``call`` as it begins, ``done`` when it has happened, ``raised`` when it failed, ``kept``
    when the run has its outcome, ``permit`` when a person allowed one more attempt."""
    start: int
    """The number of the process's start; 0 for a person."""
    policy: str
    key: str
    value: str


class Outside:
    """The file of one trial."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, what: str, start: int, policy: str, key: str, value: object = "") -> None:
        """Append a line; it is on the disk when this returns."""
        line = "\t".join([what, str(start), policy, key, str(value)]) + "\n"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def lines(self) -> list[Line]:
        """All lines, oldest first."""
        if not self._path.exists():
            return []
        parts = [text.split("\t") for text in self._path.read_text().splitlines()]
        return [Line(what, int(start), *rest) for what, start, *rest in parts]

    def done(self, key: str) -> str | None:
        """The value of the call with that key, if it happened."""
        found = (line.value for line in self.lines() if line.key == key and line.what == "done")
        return next(found, None)

    def has(self, what: str, key: str) -> bool:
        """True if there is such a line about the call with that key."""
        return any(line.key == key and line.what == what for line in self.lines())
