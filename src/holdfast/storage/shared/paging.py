"""Paging: results fetched in pages, so that nothing is held between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

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
