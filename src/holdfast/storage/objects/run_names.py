"""The index of runs: one empty object for each, named so that the newest run is listed first.

It can be rebuilt: the log of a run holds its ordinal.
"""

from __future__ import annotations

import time

import msgspec

from holdfast.storage.objects.bucket import Bucket

_LAST = 10**19 - 1


class NamedRun(msgspec.Struct, frozen=True):
    """A run in the index; it may have been deleted or not have begun."""

    ordinal: int
    name: str


class RunNames:
    """Runs by ordinal."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def ordinals(self, count: int) -> list[int]:
        """The ordinals of runs that begin now: higher than any there is, whatever the clock says.

        Runs that begin at the same moment elsewhere have no order.
        """
        newest = self.below(None, 1)
        first = max(time.time_ns(), newest[0].ordinal + 1 if newest else 0)
        return list(range(first, first + count))

    def add(self, ordinal: int, name: str) -> None:
        """Put a run into the index."""
        self._bucket.put(_key(ordinal, name), b"")

    def remove(self, ordinal: int, name: str) -> None:
        """Take a run out of the index."""
        self._bucket.delete([_key(ordinal, name)])

    def below(self, bound: int | None, size: int) -> list[NamedRun]:
        """The newest runs whose ordinals are below *bound*, at most *size* of them."""
        after = None if bound is None else f"begun/{_LAST - bound:019d}~"
        return [_read(one.key) for one in self._bucket.page("begun", after)[:size]]

    def all(self) -> list[NamedRun]:
        """All runs, the newest first."""
        return [_read(one.key) for one in self._bucket.each("begun")]


def _key(ordinal: int, name: str) -> str:
    return f"begun/{_LAST - ordinal:019d}-{name}"


def _read(key: str) -> NamedRun:
    number, _, name = key.rpartition("/")[2].partition("-")
    return NamedRun(_LAST - int(number), name)
