"""Paging: results fetched in pages, so that nothing is held between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from surehold.core.records import Header
from surehold.storage.base import RecordQuery, only_one

T = TypeVar("T")
B = TypeVar("B")
_MOST = 256


def paged(
    fetch: Callable[[B, int], tuple[Sequence[T], B | None]],
    bound: B | None,
    *,
    limit: int | None = None,
) -> Iterator[T]:
    """The items of the pages that *fetch* reads, one after another, from *bound* on.

    ``fetch(bound, size)`` reads up to *size* items and returns them with the bound of what
    follows, None at the end. The first page is of *limit* items, if that is less than a page:
    the caller cuts there, but may pass over some items before.

    >>> list(paged(lambda bound, size: ([bound], bound - 1 or None), 3))
    [3, 2, 1]
    """
    size = _MOST if limit is None else max(1, min(limit, _MOST))
    while bound is not None:
        items, bound = fetch(bound, size)
        yield from items
        size = min(2 * size, _MOST)


def bound_of(query: RecordQuery, found: Iterable[tuple[B, Header]]) -> B:
    """The place of the record that *query* calls `before`.

    *found* are the records with its id, oldest first.
    """
    places: dict[tuple[str, str], B] = {}
    for place, header in found:
        if (
            query.run_id in (None, header.run_id)
            and query.name in (None, header.name)
            and query.scope in (None, header.scope)
        ):
            places[header.run_id, header.scope] = place
    return only_one(places, query.before)


def newest_of_ids(headers: Iterable[Header]) -> list[Header]:
    """The first of *headers* with each id, run and scope; they come newest first."""
    found: dict[tuple[str, str, str], Header] = {}
    for header in headers:
        found.setdefault((header.id, header.run_id, header.scope), header)
    return list(found.values())
