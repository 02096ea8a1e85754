"""The checkpoint that the next one of a scope is a delta to."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from surehold.core.records import Door, Header
from surehold.core.state import Lineage, State
from surehold.core.values import Base, Lazy, Nature, SeenList, Written
from surehold.engine.journal.draft import CheckpointDraft, Saveable
from surehold.engine.journal.reader import Loaded, Reader
from surehold.engine.journal.unconfirmed import UnconfirmedAppends
from surehold.errors import ConflictError


class DeltaBase(msgspec.Struct, frozen=True):
    """A checkpoint that the next one of its scope can be a delta to."""

    header: Header
    form: str
    door: Door | None
    base: Base
    key_seq: int
    key_weight: int
    chain_weight: int
    deltas: int
    """The number of deltas since the keyframe, this one included."""
    written: Written
    """The records that last changed each key."""
    lineage: Lineage | None = None
    """Lineage of the state that was saved."""


class Cursor(msgspec.Struct):
    """The head of a run's journal, as far as this process knows."""

    seq: int
    digest: str
    name: str
    bases: dict[str, DeltaBase]
    conflict: ConflictError | None = None
    branches: dict[str, Any] = {}
    """The memory of a `Branching`, by scope."""
    stored: int = 0
    """The newest record that is known to be stored."""


def find_base(
    cursor: Cursor,
    draft: CheckpointDraft,
    reader: Reader,
    unconfirmed: UnconfirmedAppends,
    unsent: AbstractSet[str],
    *,
    known_id: str | None,
    held: bool,
) -> DeltaBase | None:
    """Find the checkpoint that the draft's state came from; None without one.

    *unsent* are the digests of records that are prepared and not appended yet. A state that came
    from an older checkpoint than the newest is a `ConflictError`. So is one that came from none,
    unless the newest has *known_id*, which this process saved or loaded, or the run is *held*.
    """
    wanted, scope = draft.lineage.checkpoint_id, draft.place.scope
    known = cursor.bases.get(scope)
    if known is not None and wanted in (None, known.header.id):
        return known
    if known is not None and known.header.digest in unsent:
        if known.lineage is draft.lineage:
            return known
        raise _continued(cursor, known.header)
    found = reader.head_and_newest(draft.place.run_id, scope) if cursor.seq else None
    run, newest = found if found is not None else (None, None)
    if run is None or newest is None:
        return None
    if unconfirmed.led_to(newest.run_id, wanted, newest.id):
        return delta_base_of(reader.load(newest), None)
    if wanted == newest.id and run.seq > cursor.seq:
        # It came from what another writer saved, so nothing is lost by continuing from there.
        cursor.seq, cursor.digest = run.seq, run.digest
        cursor.bases.clear()
    if wanted not in (None, newest.id):
        older = reader.storage.find(wanted or "")
        if any(header.run_id == newest.run_id for header in older):
            raise _continued(cursor, newest)
    base = delta_base_of(reader.load(newest), None)
    if wanted is None and not held and newest.id != known_id:
        raise _exists(cursor, newest)
    return base


def _exists(cursor: Cursor, newest: Header) -> ConflictError:
    return ConflictError(
        f"run {newest.run_id!r} has a checkpoint of step {newest.step}, and the state to save was"
        " not loaded from it",
        hint=f"resume_from_latest({newest.run_id!r}) gives the state to continue from; for other"
        " work, use another run id",
        run_id=newest.run_id,
        seq=cursor.seq + 1,
        head=newest.seq,
    )


def _continued(cursor: Cursor, newest: Header) -> ConflictError:
    return ConflictError(
        f"run {newest.run_id!r} was continued to step {newest.step} since then",
        run_id=newest.run_id,
        seq=cursor.seq + 1,
        head=newest.seq,
    )


def delta_base_of(loaded: Loaded, state: Saveable | None) -> DeltaBase:
    """Make a loaded checkpoint a delta base, with a frozen *state*'s values if given."""
    header = loaded.header
    values: dict[str, Any] = {key: Lazy(text) for key, text in loaded.texts.items()}
    live: dict[str, bytes | SeenList] = {}
    if isinstance(state, State):
        values, natures = state.for_saving()
        live = {k: loaded.texts[k] for k, nature in natures.items() if nature is Nature.LIVE}
    return DeltaBase(
        header,
        loaded.form,
        loaded.door if not header.scope else None,
        Base(values, live, header.size),
        key_seq=header.seq if header.frame == "key" else header.key_seq or 0,
        key_weight=loaded.key_weight,
        chain_weight=loaded.chain_weight,
        deltas=loaded.deltas,
        written=loaded.written,
    )
