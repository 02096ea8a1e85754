"""The state of a run as its log tells it: a base, and the changes after it."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from surehold.core.records import Range, merge_ranges
from surehold.storage.objects.segments import LogEntry, LogRow, PackRef
from surehold.storage.objects.zones import Zone
from surehold.storage.shared import Head

LARGE = 1 << 18
"""Bytes from which on a change stays in an object of its own."""
_LAST = 10**12 - 1


class LogView:
    """The facts of a run up to one position of its log.

    Rows and bodies of the newest base and of every later change are held; older records are in
    `packs`.
    """

    def __init__(self, name: str, run_id: str) -> None:
        self.name = name
        self.run_id = run_id
        self.pos = 0
        self.at = 0
        self.epoch = 0
        self.base = 0
        self.head: Head | None = None
        self.newest: LogRow | None = None
        self.rows: dict[int, LogRow] = {}
        self._seqs: list[int] = []
        self.bodies: dict[int, bytes] = {}
        self.packs: list[PackRef] = []
        self.bases: list[int] = []
        self.hidden: set[int] = set()
        self.erased: list[Range] = []
        self.based: tuple[int, int] = (0, 0)
        """Bytes of the base's object, and those before its first body."""
        self.based_rows: list[int] = []
        """The seqs of the records in the base's object."""
        self.large: dict[int, PackRef] = {}
        """Changes since the base that are too large to be packed or held, by position."""
        self.weight = 0
        self.rested = -1
        """The position whose facts this process has put into the index of runs."""
        self.confirmed = -1e18
        """When it was last known to be the newest, by `now`."""

    @property
    def loose(self) -> int:
        """The changes since the newest base."""
        return self.pos - self.base

    @property
    def loose_rows(self) -> int:
        """The records of those changes."""
        return len(self.rows) - len(self.based_rows)

    @property
    def seqs(self) -> list[int]:
        """The seqs of the rows that are held, in order."""
        if len(self._seqs) != len(self.rows):
            self._seqs = sorted(self.rows)
        return self._seqs

    def apply(self, entry: LogEntry, bodies: Mapping[int, bytes], size: int, index: int) -> None:
        """Follow *entry*, the next of the log or a base; *size*, *index* are its object's."""
        if entry.base == entry.pos:
            self.rows, self._seqs, self.bodies, self.large = {}, [], {}, {}
            self.packs, self.bases = list(entry.packs), list(entry.bases)
            self.hidden, self.erased = seqs_in(entry.hidden), list(entry.erased)
            self.based, self.based_rows = (size, index), [row.seq for row in entry.rows]
            self.weight = 0
        else:
            self.hidden |= seqs_in(entry.hidden)
            if entry.erased:
                self.erase(entry.erased)
        self.pos, self.at, self.epoch = entry.pos, entry.at, entry.epoch
        self.base, self.head, self.newest = entry.base, entry.head, entry.newest
        is_large = entry.base != entry.pos and size >= LARGE and bool(entry.rows)
        if is_large:
            key = entry_key(self.name, entry.pos)
            self.large[entry.pos] = ref_of(key, entry.rows, size, index, 9)
        for row in entry.rows:
            self.rows[row.seq] = row
            if not is_large:
                self.bodies[row.seq] = bodies[row.seq]
        self.weight += index if is_large else size

    def erase(self, ranges: Sequence[Range]) -> None:
        """Forget the records of some ranges."""
        self.erased = merge_ranges([*self.erased, *ranges])
        for seq in [seq for seq in self.rows if self.is_erased(seq)]:
            self._seqs = []
            del self.rows[seq]
            self.bodies.pop(seq, None)
        self.hidden = {seq for seq in self.hidden if not self.is_erased(seq)}

    def is_erased(self, seq: int) -> bool:
        """True if the record at *seq* was erased."""
        return is_within(self.erased, seq)


def entry_key(name: str, pos: int) -> str:
    """The name of the object at a position of a log; later ones come first.

    >>> entry_key("nightly", 1) > entry_key("nightly", 2)
    True
    """
    return f"log/{name}/{_LAST - pos:012d}"


def pos_of(key: str) -> int:
    """The position that the name of an object of a log tells."""
    return _LAST - int(key.rpartition("/")[2])


def ref_of(
    key: str,
    rows: Sequence[LogRow],
    size: int,
    index: int,
    level: int,
    *,
    zone: Zone | None = None,
) -> PackRef:
    """A reference to an object that holds these rows."""
    return PackRef(key, rows[0].seq, rows[-1].seq, size, index, level, zone=zone)


def seqs_in(ranges: Sequence[Range]) -> set[int]:
    """All seqs of some ranges."""
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def is_within(ranges: Sequence[Range], seq: int) -> bool:
    """True if one of the ranges, which are in order, holds *seq*."""
    at = bisect_right(ranges, seq, key=lambda one: one[0]) - 1
    return at >= 0 and seq <= ranges[at][1]


def now() -> float:
    """Seconds on a clock that also counts the time of suspension."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
