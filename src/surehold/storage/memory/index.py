"""Indexes of `MemoryStorage`: records by facet and id, runs by name and status."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import chain

import msgspec

from surehold.core.records import Header
from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.shared import facets_in, facets_of

_FEW = 16
"""Up to so many changes to a list are made one by one, more by making it anew."""


class StoredRecord(msgspec.Struct):
    """A stored record. Its header is decoded from its own text: no caller holds it."""

    place: int
    """Counts all records of the storage in the order of their commits."""
    header: Header
    text: bytes
    body: bytes
    hidden: bool = False


_Facet = tuple[str, ...]
NameAndStatus = tuple[str, str]
"""A run's name and status."""


class Visible:
    """Places of the visible records, by facet."""

    def __init__(self) -> None:
        self._checkpoints: defaultdict[_Facet, list[int]] = defaultdict(list)
        self._all: defaultdict[_Facet, list[int]] = defaultdict(list)

    def add(self, entry: StoredRecord) -> None:
        for facet in _facets_of(entry.header):
            self._all[facet].append(entry.place)
            if entry.header.frame != "note":
                self._checkpoints[facet].append(entry.place)

    def drop(self, entries: Iterable[StoredRecord]) -> None:
        gone: defaultdict[_Facet, set[int]] = defaultdict(set)
        for entry in entries:
            for facet in _facets_of(entry.header):
                gone[facet].add(entry.place)
        for lists in (self._all, self._checkpoints):
            for facet in gone.keys() & lists.keys():
                remove(lists[facet], gone[facet])
                if not lists[facet]:
                    del lists[facet]

    def of(self, query: RecordQuery) -> Sequence[int]:
        """The shortest list that holds all that *query* wants, and perhaps more."""
        lists = self._all if query.notes else self._checkpoints
        return min((lists.get(facet, ()) for facet in _facets_in(query)), key=len)


def _facets_of(header: Header) -> Iterator[_Facet]:
    yield ()
    yield "run", header.run_id
    yield "scope", header.scope
    yield "run+scope", header.run_id, header.scope
    yield from facets_of(header)


def _facets_in(query: RecordQuery) -> Iterator[_Facet]:
    yield ()
    if query.run_id is not None and query.scope is not None:
        yield "run+scope", query.run_id, query.scope
    if query.run_id is not None:
        yield "run", query.run_id
    if query.scope is not None:
        yield "scope", query.scope
    yield from facets_in(query)


class Ids:
    """Places of the records of each id, hidden ones and notes included."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}
        self._sorted: list[str] = []
        # Put in their place by the next search: an append must not pay for ids out of order.
        self._unsorted: set[str] = set()

    def add(self, id_: str, place: int) -> None:
        if id_ not in self._places:
            self._places[id_] = []
            self._unsorted.add(id_)
        self._places[id_].append(place)

    def drop(self, id_: str, place: int) -> None:
        self._places[id_].remove(place)
        if self._places[id_]:
            return
        del self._places[id_]
        if id_ in self._unsorted:
            self._unsorted.remove(id_)
        else:
            del self._sorted[bisect_left(self._sorted, id_)]

    def places(self, id_: str) -> Sequence[int]:
        return self._places.get(id_, ())

    def starting(self, prefix: str) -> Iterator[str]:
        if len(self._unsorted) > _FEW:
            self._sorted = sorted(self._places)
        else:
            for id_ in self._unsorted:
                insort(self._sorted, id_)
        self._unsorted.clear()
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                return
            yield self._sorted[index]


class RunIndex:
    """Ordinals of runs by name and status, each list in the order in which they began."""

    def __init__(self) -> None:
        self._ordinals: defaultdict[str | None, defaultdict[str, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def move(self, ordinal: int, old: NameAndStatus | None, new: NameAndStatus | None) -> None:
        if old == new:
            return
        if old is not None:
            for name in (None, old[0]):
                remove(self._ordinals[name][old[1]], [ordinal])
                if not self._ordinals[name][old[1]]:
                    del self._ordinals[name][old[1]]
            if not self._ordinals[old[0]]:
                del self._ordinals[old[0]]
        if new is not None:
            for name in (None, new[0]):
                insort(self._ordinals[name][new[1]], ordinal)

    def below(self, query: RunQuery, bound: int, size: int) -> list[int]:
        """The *size* newest wanted ordinals under *bound*."""
        newest = []
        for status, ordinals in self._ordinals.get(query.name, {}).items():
            if query.status in (None, status) and query.not_status != status:
                end = bisect_left(ordinals, bound)
                newest.append(ordinals[max(0, end - size) : end])
        return nlargest(size, chain.from_iterable(newest))


def remove(numbers: list[int], gone: Collection[int]) -> None:
    """Remove *gone* from the sorted *numbers*."""
    if len(gone) > _FEW:
        numbers[:] = [number for number in numbers if number not in gone]
        return
    for number in gone:
        index = bisect_left(numbers, number)
        if index < len(numbers) and numbers[index] == number:
            del numbers[index]
