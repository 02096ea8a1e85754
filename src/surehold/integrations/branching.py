"""Scopes in which checkpoints branch, and have an order of their own.

Some runtimes name their checkpoints themselves, build each on any earlier one, and define the
newest as the one with the greatest id or time, its sort key. Sort keys mostly rise in the order of
saving. A checkpoint saved after one with a greater key is tagged, so the last saved checkpoint
without the tag is the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from surehold.core.records import Header
from surehold.core.state import Place
from surehold.engine.journal import CheckpointDraft, Cursor, DeltaBase, Reader, delta_base_of
from surehold.errors import ConflictError
from surehold.storage.base import RecordQuery, Storage

LATE = "out-of-order"
"""The tag of a checkpoint whose sort key is less than that of one saved before it in its scope."""
_SCOPES = 64
"""The number of scopes of a run whose greatest sort key is remembered."""

SortKey: TypeAlias = Callable[[str, Mapping[str, Any]], str]
"""Returns what a scope is ordered by, given a checkpoint's id and metadata."""


def by_id(checkpoint_id: str, metadata: Mapping[str, Any]) -> str:
    """The sort key of checkpoints whose ids rise."""
    return checkpoint_id


class Top(msgspec.Struct, frozen=True):
    """The greatest sort key of a scope, and the id that was saved last in it."""

    greatest: str = ""
    newest: str = ""


class SortedBranches(msgspec.Struct, frozen=True):
    """The journal's `Branching` rules for checkpoints with foreign ids and sort keys."""

    sort_key: SortKey
    fast_forward_only: bool = False
    """A checkpoint may only be built on the one that was saved last in its scope."""

    def place(self, cursor: Cursor, draft: CheckpointDraft, reader: Reader) -> tuple[Place, bool]:
        """The draft's place, tagged if it is out of order, and whether its id may exist."""
        assert draft.id is not None
        place = draft.place
        top = cursor.branches.pop(place.scope, None)
        if top is None:
            top = Top()
            if cursor.seq:
                top = top_of(reader.storage, place.run_id, place.scope, self.sort_key)
        if self.fast_forward_only and top.newest not in (
            "",
            draft.id,
            draft.lineage.checkpoint_id,
        ):
            raise ConflictError(
                f"run {place.run_id!r} was continued to checkpoint {top.newest} since then",
                run_id=place.run_id,
                seq=cursor.seq + 1,
                head=cursor.seq,
            )
        key = self.sort_key(draft.id, place.metadata)
        if len(cursor.branches) >= _SCOPES:
            del cursor.branches[next(iter(cursor.branches))]
        cursor.branches[place.scope] = Top(max(key, top.greatest), draft.id)
        reused = key != draft.id or key <= top.greatest
        if key >= top.greatest:
            return place, reused
        return msgspec.structs.replace(place, tags=(*place.tags, LATE)), reused

    def base(self, cursor: Cursor, draft: CheckpointDraft, reader: Reader) -> DeltaBase | None:
        """The checkpoint that the draft's lineage names; None if there is none such."""
        wanted, place = draft.lineage.checkpoint_id, draft.place
        known = cursor.bases.get(place.scope)
        if known is not None and known.header.id == wanted:
            return known
        for found in reader.storage.find(wanted) if wanted and cursor.seq else ():
            if (found.id, found.run_id, found.scope) == (wanted, place.run_id, place.scope):
                return delta_base_of(reader.load(found), None)
        return None


def top_of(storage: Storage, run_id: str, scope: str, sort_key: SortKey) -> Top:
    """The top of a scope's visible checkpoints, at the cost of those out of order."""
    newest, greatest = "", ""
    for header in storage.headers(RecordQuery(run_id=run_id, scope=scope)):
        newest = newest or header.id
        greatest = max(greatest, sort_key(header.id, header.metadata))
        if LATE not in header.tags:
            break
    return Top(greatest, newest)


def in_order(headers: Iterable[Header], sort_key: SortKey) -> Iterator[Header]:
    """*headers*, newest first by seq, in each scope sorted by falling sort key."""
    waiting: dict[tuple[str, str], list[Header]] = {}

    def order(header: Header) -> tuple[str, int]:
        return sort_key(header.id, header.metadata), header.seq

    for header in headers:
        key = (header.run_id, header.scope)
        if LATE in header.tags:
            waiting.setdefault(key, []).append(header)
            continue
        # All that comes after one in order has a smaller key, and so have some that were late.
        late = sorted(waiting.pop(key, ()), key=order, reverse=True)
        own = order(header)
        yield from (one for one in late if order(one) > own)
        yield header
        if rest := [one for one in late if order(one) < own]:
            waiting[key] = rest
    for late in waiting.values():
        yield from sorted(late, key=order, reverse=True)
