"""What a save builds on: where a run's journal stands, and which checkpoint comes before."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoint.journal.draft import CheckpointDraft, Saveable
from holdfast.checkpoint.journal.reader import Loaded, Reader
from holdfast.checkpoint.journal.requests import Outcome
from holdfast.checkpoint.journal.sort_order import LATE, Top, top_of
from holdfast.checkpoint.journal.unconfirmed import UnconfirmedAppends
from holdfast.core.records import Header
from holdfast.core.state import Lineage, Place, State
from holdfast.core.values import Base, Lazy, Nature, SeenList
from holdfast.errors import ConflictError
from holdfast.storage.base import Storage

__all__ = ["SCOPES_REMEMBERED", "Bases", "Cursor", "DeltaBase", "delta_base_of"]

SCOPES_REMEMBERED = 64
"""Of so many scopes of a run that branches it is remembered what was saved last."""


class DeltaBase(msgspec.Struct, frozen=True):
    """A checkpoint that the next one of its scope can be a delta to."""

    header: Header
    form: str
    base: Base
    key_seq: int
    key_weight: int
    chain_weight: int
    lineage: Lineage | None = None
    """That of the state which was saved as it."""


class Cursor(msgspec.Struct):
    """Where a run's journal stands, as far as this process knows."""

    seq: int
    digest: str
    name: str
    bases: dict[str, DeltaBase]
    conflict: ConflictError | None = None
    tops: dict[str, Top] = {}
    """Where the scopes stand whose checkpoints have ranks."""

    def copy(self) -> Cursor:
        bases, tops = dict(self.bases), dict(self.tops)
        return Cursor(self.seq, self.digest, self.name, bases, self.conflict, tops)


class Bases:
    """Finds the checkpoint that the next one of a scope is a delta to."""

    def __init__(self, storage: Storage, reader: Reader, doubts: UnconfirmedAppends) -> None:
        self.unsent: set[str] = set()
        """Digests of what is prepared and not appended yet."""
        self._storage = storage
        self._reader = reader
        self._doubts = doubts

    def last(self, cursor: Cursor, draft: CheckpointDraft) -> DeltaBase | None:
        """The checkpoint that the draft's state came from, to be its base."""
        wanted = draft.lineage.checkpoint_id
        known = cursor.bases.get(draft.place.scope)
        if known is not None and wanted in (None, known.header.id):
            return known
        if known is not None and known.header.digest in self.unsent:
            if known.lineage is draft.lineage:
                return known
            raise self._gone_on(cursor, known.header)
        if cursor.seq == 0:
            return None
        run = self._reader.run(draft.place.run_id)
        if run is None:
            return None
        run, newest = self._reader.standing(run, draft.place.scope)
        if newest is None:
            return None
        if self._doubts.led_to(newest.run_id, wanted, newest.id):
            return self._loaded(newest)
        if wanted == newest.id and run.seq > cursor.seq:
            # It came from what another saved, so that nothing is lost by going on from there.
            cursor.seq, cursor.digest = run.seq, run.digest
            cursor.bases.clear()
        if wanted not in (None, newest.id):
            if not any(
                header.run_id == newest.run_id for header in self._storage.find(wanted or "")
            ):
                return self._loaded(newest)
            raise self._gone_on(cursor, newest)
        return self._loaded(newest)

    def ranked(self, cursor: Cursor, draft: CheckpointDraft, outcome: Outcome) -> Place:
        """The place of a checkpoint that has a rank, tagged if that is out of order."""
        assert draft.rank is not None and draft.id is not None
        place = draft.place
        top = cursor.tops.pop(place.scope, None)
        if top is None:
            new = cursor.seq == 0
            top = Top() if new else top_of(self._storage, place.run_id, place.scope, draft.rank)
        if draft.alone and top.newest not in ("", draft.id, draft.lineage.checkpoint_id):
            raise ConflictError(
                f"run {place.run_id!r} has gone on to checkpoint {top.newest} since then",
                run_id=place.run_id,
                seq=cursor.seq + 1,
                head=cursor.seq,
            )
        rank = draft.rank(draft.id, place.metadata)
        if len(cursor.tops) >= SCOPES_REMEMBERED:
            del cursor.tops[next(iter(cursor.tops))]
        cursor.tops[place.scope] = Top(max(rank, top.greatest), draft.id)
        outcome.supersedes = rank != draft.id or rank <= top.greatest
        if rank >= top.greatest:
            return place
        return msgspec.structs.replace(place, tags=(*place.tags, LATE))

    def named(self, cursor: Cursor, draft: CheckpointDraft) -> DeltaBase | None:
        """The checkpoint that a branch names, to be its base; None if there is none such."""
        wanted, place = draft.lineage.checkpoint_id, draft.place
        known = cursor.bases.get(place.scope)
        if known is not None and known.header.id == wanted:
            return known
        for found in self._storage.find(wanted) if wanted and cursor.seq else ():
            if (found.id, found.run_id, found.scope) == (wanted, place.run_id, place.scope):
                return self._loaded(found)
        return None

    def _gone_on(self, cursor: Cursor, newest: Header) -> ConflictError:
        return ConflictError(
            f"run {newest.run_id!r} has gone on to step {newest.step} since then",
            run_id=newest.run_id,
            seq=cursor.seq + 1,
            head=newest.seq,
        )

    def _loaded(self, header: Header) -> DeltaBase:
        return delta_base_of(self._reader.load(header), None)

    def is_there(self, header: Header) -> bool:
        """Whether that checkpoint has not been deleted meanwhile."""
        return header.digest in self.unsent or any(
            found.digest == header.digest for found in self._storage.find(header.id)
        )


def delta_base_of(loaded: Loaded, state: Saveable | None) -> DeltaBase:
    """The delta base that a loaded checkpoint is; the values of a frozen *state* are its base."""
    header = loaded.header
    values: dict[str, Any] = {key: Lazy(text) for key, text in loaded.texts.items()}
    live: dict[str, bytes | SeenList] = {}
    if isinstance(state, State):
        values, natures = state.for_saving()
        live = {k: loaded.texts[k] for k, nature in natures.items() if nature is Nature.LIVE}
    return DeltaBase(
        header,
        loaded.form,
        Base(values, live, header.size),
        key_seq=header.seq if header.frame == "key" else header.key_seq or 0,
        key_weight=loaded.key_weight,
        chain_weight=loaded.chain_weight,
    )
