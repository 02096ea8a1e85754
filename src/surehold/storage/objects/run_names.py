"""The index of runs: an empty object for each, named to list the newest first.

A run that came to rest (it is not running) has a second one, whose name tells the facts of its
head, so that one request lists a thousand of them. Whoever changes such a run removes it first.
Both can be rebuilt: the log of a run holds its ordinal and its head.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Iterator, Sequence

import msgspec

from surehold.storage.base import RunInfo
from surehold.storage.objects.bucket import Bucket

_LAST = 10**19 - 1
_LONGEST = 900
"""Bytes of a name that every store takes; the prefix of the bucket comes before it."""
_FACTS = RunInfo.__struct_fields__


class NamedRun(msgspec.Struct, frozen=True):
    """A run in the index, possibly deleted since or not yet begun."""

    ordinal: int
    name: str


class RunTip(msgspec.Struct, frozen=True):
    """A run as its newest change has left it, without its records."""

    run_id: str
    pos: int
    """The position in its log."""
    at: int
    """The time of the change, in nanoseconds."""
    info: RunInfo | None
    """None if the run was deleted."""


class RunNames:
    """Runs by ordinal."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def ordinals(self, count: int) -> list[int]:
        """The ordinals of runs that begin now: higher than any, whatever the clock says.

        Runs that begin at the same moment elsewhere have no order.
        """
        newest = self.below(None, 1)
        first = max(time.time_ns(), newest[0].ordinal + 1 if newest else 0)
        return list(range(first, first + count))

    def add(self, ordinal: int, name: str) -> None:
        """Put a run into the index."""
        self._bucket.put(f"begun/{_key(ordinal, name)}", b"")

    def remove(self, ordinal: int, name: str) -> None:
        """Take a run out of the index."""
        self._bucket.delete([f"begun/{_key(ordinal, name)}"])

    def below(self, bound: int | None, size: int) -> list[NamedRun]:
        """The newest runs whose ordinals are below *bound*, at most *size* of them."""
        after = None if bound is None else f"begun/{_LAST - bound:019d}~"
        return [_read(one.key)[0] for one in self._bucket.page("begun", after)[:size]]

    def all(self) -> list[NamedRun]:
        """All runs, the newest first."""
        return [_read(one.key)[0] for one in self._bucket.each("begun")]

    def rest(self, name: str, tip: RunTip) -> bool:
        """Put the facts of a resting run into the index; False if they are too long."""
        assert tip.info is not None
        facts = (tip.pos, tip.at, *(getattr(tip.info, field) for field in _FACTS))
        text = base64.urlsafe_b64encode(msgspec.msgpack.encode(facts)).decode().rstrip("=")
        key = f"rest/{_key(tip.info.ordinal, name)}.{text}"
        if len(key) > _LONGEST:
            return False
        self._bucket.put(key, b"")
        return True

    def stir(self, ordinal: int, name: str) -> None:
        """Take the facts of a run out of the index, because it is about to change."""
        first = f"rest/{_key(ordinal, name)}."
        page = self._bucket.page("rest", first)
        if found := [one.key for one in page if one.key.startswith(first)]:
            self._bucket.delete(found)

    def resting(self, runs: Sequence[NamedRun]) -> dict[NamedRun, RunTip]:
        """The facts of those of some runs, which follow each other, that are at rest."""
        if not runs:
            return {}
        found: dict[NamedRun, RunTip] = {}
        for one, tip in self._at_rest(f"rest/{_LAST - runs[0].ordinal:019d}"):
            if one.ordinal < runs[-1].ordinal:
                break
            # Where two processes changed a run at the same moment, older facts may be left.
            if one not in found or found[one].pos < tip.pos:
                found[one] = tip
        return found

    def all_resting(self) -> list[tuple[NamedRun, RunTip]]:
        """The facts of all runs that are at rest."""
        return list(self._at_rest(None))

    def _at_rest(self, after: str | None) -> Iterator[tuple[NamedRun, RunTip]]:
        for listed in self._bucket.each("rest", after):
            one, text = _read(listed.key)
            tip = _tip(text)
            if tip is not None:
                yield one, tip


def _key(ordinal: int, name: str) -> str:
    return f"{_LAST - ordinal:019d}-{name}"


def _read(key: str) -> tuple[NamedRun, str]:
    number, _, rest = key.rpartition("/")[2].partition("-")
    name, _, facts = rest.partition(".")
    return NamedRun(_LAST - int(number), name), facts


def _tip(text: str) -> RunTip | None:
    """The facts in a name; None for those of another version of Surehold."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        pos, at, *values = msgspec.msgpack.decode(data, type=tuple)
        info = msgspec.convert(dict(zip(_FACTS, values, strict=True)), RunInfo)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        return None
    return RunTip(info.run_id, pos, at, info)
