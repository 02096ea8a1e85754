"""Zones, by which a reader skips the parts of a run that hold no match.

A zone holds the bounds of some records. It gives no false negatives; a false positive costs one
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias
from zlib import crc32

import msgspec

from surehold.core.records import Header
from surehold.storage.base import RecordQuery
from surehold.storage.rows import micros
from surehold.storage.shared import COMMON_KIND, Facet, facets_in, facets_of

_MOST_VALUES = 32
"""Values of one word that a zone tells apart."""


class Zone(msgspec.Struct, frozen=True, array_like=True):
    """The bounds of some records, and hashes of their facets."""

    least: str
    most: str
    """The lowest and the highest of their ids."""
    since: int
    until: int
    """The first and the last time of a save, in microseconds."""
    facets: tuple[tuple[str, tuple[int, ...]], ...]
    """By word the hashes of the values that occur; none of them: too many to tell."""

    def has(self, word: str, value: str) -> bool:
        """True if one of the records may have this facet."""
        return any(
            word == known and (not hashes or _hash(value) in hashes)
            for known, hashes in self.facets
        )


Wanted: TypeAlias = Callable[[Zone], bool]
"""False if none of the records in a zone is wanted."""


def zone_of(headers: Iterable[Header]) -> Zone:
    """The zone of these records; at least one."""
    opened = list(headers)
    ids = [header.id for header in opened]
    times = [micros(header.saved_at) for header in opened]
    values: dict[str, set[int]] = {}
    for header in opened:
        for word, value in _facets_of(header):
            values.setdefault(word, set()).add(_hash(value))
    return Zone(min(ids), max(ids), min(times), max(times), _told(values))


def joined(zones: Iterable[Zone]) -> Zone:
    """The zone of all records in these zones; at least one."""
    all_ = list(zones)
    values: dict[str, set[int]] = {}
    many: set[str] = set()
    for zone in all_:
        for word, hashes in zone.facets:
            values.setdefault(word, set()).update(hashes)
            if not hashes:
                many.add(word)
    return Zone(
        min(zone.least for zone in all_),
        max(zone.most for zone in all_),
        min(zone.since for zone in all_),
        max(zone.until for zone in all_),
        _told(values, many),
    )


def with_query(query: RecordQuery) -> Wanted:
    """Wants zones with a record that *query* may want."""
    facets = list(facets_in(query))
    if query.scope:
        facets.append(("scope", query.scope))
    since = None if query.since is None else micros(query.since)
    until = None if query.until is None else micros(query.until)

    def wanted(zone: Zone) -> bool:
        return (
            all(zone.has(word, value) for word, value in facets)
            and (since is None or zone.until >= since)
            and (until is None or zone.since <= until)
        )

    return wanted


def with_kind(kinds: Iterable[str]) -> Wanted:
    """Wants zones with a record of one of these kinds."""
    known = list(kinds)
    return lambda zone: any(kind == COMMON_KIND or zone.has("kind", kind) for kind in known)


def with_scope(scope: str) -> Wanted:
    """Wants zones with a record of a scope, which is not that of the run itself."""
    return lambda zone: zone.has("scope", scope)


def with_id(prefix: str, *, whole: bool = False) -> Wanted:
    """Wants zones with an id that starts so; with *whole*, that is so."""
    end = None if whole else len(prefix)
    return lambda zone: zone.least[:end] <= prefix <= zone.most[:end]


def _facets_of(header: Header) -> Iterable[Facet]:
    yield from facets_of(header)
    if header.scope:
        yield "scope", header.scope


def _told(
    values: dict[str, set[int]], many: Iterable[str] = ()
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    known = {
        word: tuple(sorted(hashes)) if len(hashes) <= _MOST_VALUES else ()
        for word, hashes in sorted(values.items())
    }
    return tuple((known | dict.fromkeys(many, ())).items())


def _hash(value: str) -> int:
    """Two bytes: enough to tell values of a zone apart, too few to tell one by."""
    return crc32(value.encode("utf-8", "surrogatepass")) & 0xFFFF
