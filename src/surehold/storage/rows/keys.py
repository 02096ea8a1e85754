"""Keys: facets as bytes, sorted so that a listing walks one index, newest first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

from surehold.core.records import Header
from surehold.storage.base import RecordQuery
from surehold.storage.shared import COMMON_KIND, Facet, common_facets, facets_in, facets_of

NOTE = 1
HIDDEN = 2
NESTED = 4
"""Bits of a record's state; a visible checkpoint of the run itself has none of them."""

MOST_NOTES = "effect"
"""The kind that most notes have: they are found within a run only, by its key there."""
_LONGEST = 48
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LETTERS = {"name": b"n", "kind": b"k", "status": b"s", "tag": b"t"}


def state_of(header: Header) -> int:
    """The state of a record that is new."""
    return (NOTE if header.frame == "note" else 0) | (NESTED if header.scope else 0)


def record_keys(header: Header, run: int) -> list[bytes]:
    """The keys of a visible record, each once, *run* being the number of its run.

    The first is that of its id, which a hidden record keeps.
    """
    keys = [id_key(header.id)]
    if header.frame != "note" and header.scope:
        keys.append(scope_key(run, header.scope))
    if header.tags or header.metadata:
        keys += _facet_keys(run, facets_of(header))
        return list(dict.fromkeys(keys))
    name = header.name if header.frame != "note" else ""
    keys += _common_keys(run, name, header.kind, header.status)
    return keys


@lru_cache(maxsize=1024)
def _common_keys(run: int, name: str, kind: str, status: str) -> tuple[bytes, ...]:
    """The keys that most records of a run share."""
    return tuple(_facet_keys(run, common_facets(name, kind, status)))


def _facet_keys(run: int, facets: Iterable[Facet]) -> Iterator[bytes]:
    for facet in facets:
        if facet[0] == "kind":
            yield kind_key(run, facet[1])
        if facet != ("kind", MOST_NOTES):
            yield _key(facet)


def query_keys(query: RecordQuery, run: int | None) -> list[bytes]:
    """The keys of every record that *query* wants, best first; *run* numbers its run.

    A key of the run and scope, or of the run and kind, is among them where that is rare.
    """
    keys = [_key(facet) for facet in facets_in(query) if facet != ("kind", MOST_NOTES)]
    if run is None:
        return keys
    if query.tag is not None:
        # Few records have a tag, however many the run has.
        keys.sort(key=lambda key: key[:1] != b"t")
    elif query.kind not in (None, COMMON_KIND):
        keys.insert(0, kind_key(run, query.kind))
    elif query.scope and not query.notes:
        keys.insert(0, scope_key(run, query.scope))
    return keys


def id_key(id_: str) -> bytes:
    """The key of an id, which is kept whole, so that a prefix of it is a range."""
    return b"i" + id_.encode("utf-8", "surrogatepass")


def id_range(prefix: str) -> tuple[bytes, bytes]:
    """The first key of an id that starts with *prefix*, and the first after them all."""
    key = id_key(prefix)
    return key, key[:-1] + bytes([key[-1] + 1])


def scope_key(run: int, scope: str) -> bytes:
    """The key of a run's checkpoints in a scope."""
    return b"c%d:" % run + _short(scope)


def kind_key(run: int, kind: str) -> bytes:
    """The key of a run's records of one kind, often few notes among many records."""
    return b"r%d:" % run + _short(kind)


def micros(moment: datetime) -> int:
    """*moment* in microseconds since 1970; one without a time zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _key(facet: Facet) -> bytes:
    word, value = facet
    if word == "metadata":
        return b"m" + hashlib.sha256(_bytes(value)).digest()[:16]
    return _LETTERS[word] + _short(value)


def _short(text: str) -> bytes:
    data = _bytes(text)
    return data if len(data) <= _LONGEST else hashlib.sha256(data).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
