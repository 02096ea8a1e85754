"""Journals in which states branch, and which have an order of their own.

Some runtimes name their checkpoints themselves, build each on any earlier one, and call the
newest the one with the greatest id, or time. Mostly that is the order in which they are saved.
One that is not, because an earlier one has a greater rank, is tagged: so those in order can be
trusted, and the newest is found without looking at them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.core.records import Header
from holdfast.storage.base import RecordQuery, Storage

__all__ = ["LATE", "Rank", "Top", "by_id", "in_order", "top_of"]

LATE = "out-of-order"
"""The tag of a checkpoint whose rank is less than that of one saved before it in its scope."""

Rank: TypeAlias = Callable[[str, Mapping[str, Any]], str]
"""What a scope is ordered by, told the id and the metadata of a checkpoint."""


def by_id(checkpoint_id: str, metadata: Mapping[str, Any]) -> str:
    """The rank of checkpoints whose ids rise."""
    return checkpoint_id


class Top(msgspec.Struct, frozen=True):
    """Where a scope stands: the greatest rank in it, and the id that was saved last."""

    greatest: str = ""
    newest: str = ""


def top_of(storage: Storage, run_id: str, scope: str, rank: Rank) -> Top:
    """Where the visible checkpoints of a scope stand, at the cost of those out of order."""
    newest, greatest = "", ""
    for header in storage.headers(RecordQuery(run_id=run_id, scope=scope)):
        newest = newest or header.id
        greatest = max(greatest, rank(header.id, header.metadata))
        if LATE not in header.tags:
            break
    return Top(greatest, newest)


def in_order(headers: Iterable[Header], rank: Rank) -> Iterator[Header]:
    """*headers*, given newest first by seq, in each scope in falling order of their ranks."""
    waiting: dict[tuple[str, str], list[Header]] = {}

    def order(header: Header) -> tuple[str, int]:
        return rank(header.id, header.metadata), header.seq

    for header in headers:
        key = (header.run_id, header.scope)
        if LATE in header.tags:
            waiting.setdefault(key, []).append(header)
            continue
        # All that comes after one in order has a smaller rank, and so have some that were late.
        late = sorted(waiting.pop(key, ()), key=order, reverse=True)
        own = order(header)
        yield from (one for one in late if order(one) > own)
        yield header
        if rest := [one for one in late if order(one) < own]:
            waiting[key] = rest
    for late in waiting.values():
        yield from sorted(late, key=order, reverse=True)
