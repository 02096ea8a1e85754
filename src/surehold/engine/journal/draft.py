"""Drafts of checkpoints: states as the engine sees them, and states rebuilt."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import uuid4

import msgspec

from surehold.core.records import Door, Header, check_run_id, read_status
from surehold.core.state import Lineage, Place, State, indexed_metadata, read_metadata
from surehold.core.values import Items, Lazy, Nature, decode, encode
from surehold.errors import UsageError

if TYPE_CHECKING:
    from surehold.core.state import AgentState
    from surehold.engine.journal.delta_base import Cursor, DeltaBase
    from surehold.engine.journal.reader import Reader

Saveable: TypeAlias = "State | AgentState"

_IN_HEADER = frozenset(
    ["checkpoint_id", "agent_id", "run_id", "step_number", "parent_checkpoint_id", "status"]
)


@cache
def _in_body() -> dict[str, Nature]:
    """The fields of an agent's state that a body holds."""
    from surehold.core.state import AgentState

    names = (field.name for field in dataclasses.fields(AgentState))
    return {name: Nature.LIVE for name in names if name not in _IN_HEADER}


class Branching(Protocol):
    """The rules of a scope whose checkpoints branch instead of following one another.

    A draft with such rules has an id of its own, and may be saved whatever was saved since the
    checkpoint it came from.
    """

    def place(self, cursor: Cursor, draft: CheckpointDraft, reader: Reader) -> tuple[Place, bool]:
        """The draft's place, and whether an earlier checkpoint may have its id."""

    def base(self, cursor: Cursor, draft: CheckpointDraft, reader: Reader) -> DeltaBase | None:
        """The checkpoint that the draft is a delta to; None for a keyframe."""


class CheckpointDraft(msgspec.Struct, frozen=True):
    """A state that is about to be saved, as the engine sees it."""

    form: str
    """The class to restore: "" for State, "agent" for AgentState."""
    place: Place
    values: dict[str, Any]
    natures: Mapping[str, Nature]
    lineage: Lineage
    id: str | None = None
    """The checkpoint's id, if the caller gives one."""
    door: Door | None = None
    """What executes the run; None for that of the checkpoint it is built on."""
    fingerprint: str | None = None
    schema: int | None = None
    """The version of its values; None for the newest that `migrations` knows of its name."""
    extra: Callable[[bool], bytes] | None = None
    """Returns what the door keeps beside the values, as JSON: all of it for a keyframe (True),
    else what was added since the checkpoint that this one is built on."""
    force_keyframe: bool = False
    """Begin with a keyframe, whatever was saved in its scope before."""
    branching: Branching | None = None
    """The rules of its scope, if checkpoints branch there."""
    on_stored: Callable[[], None] | None = None
    """Called as soon as it is durable, on the thread that does the work."""


def draft_of(state: Saveable, *, new_run_id: str | None = None) -> CheckpointDraft:
    """Make a draft of *state*; an agent's state without a run gets *new_run_id*."""
    if isinstance(state, State):
        values, natures = state.for_saving()
        return CheckpointDraft("", state.place, values, natures, state.lineage)
    from surehold.core.state import AgentState

    if not isinstance(state, AgentState):
        raise UsageError(
            f"a {type(state).__name__} cannot be saved", hint="save a State or an AgentState"
        )
    check_run_id(state.agent_id, "agent_id")
    lineage = lineage_of(state)
    place = Place(
        run_id=check_run_id(state.run_id or new_run_id or str(uuid4())),
        name=state.agent_id,
        step=state.step_number,
        status=read_status(state.status),
        metadata=indexed_metadata(state.metadata),
    )
    values = {name: getattr(state, name) for name in _in_body()}
    given = state.checkpoint_id if state.checkpoint_id != lineage.checkpoint_id else None
    return CheckpointDraft("agent", place, values, _in_body(), lineage, given or None)


def state_of(draft: CheckpointDraft) -> Saveable:
    """Make the state of a draft; an agent's is mutable, with frozen deeper values."""
    if draft.form:
        return agent_state(draft.place, draft.values)
    made = State.new(draft.values, run_id=draft.place.run_id)
    return made.placed(draft.place)


def texts_of(draft: CheckpointDraft) -> dict[str, bytes]:
    """The text of each value of a draft."""
    return {
        key: value.text if isinstance(value, Lazy | Items) else encode(value)
        for key, value in draft.values.items()
    }


def agent_state(place: Place, values: Mapping[str, Any]) -> AgentState:
    """Make an agent's state of these values, lists and dicts copied one level deep."""
    return _agent_state(place, {k: copy.copy(_given_out(value)) for k, value in values.items()})


def _agent_state(place: Place, given: dict[str, Any]) -> AgentState:
    from surehold.core.state import AgentState

    extra = {name: given.pop(name) for name in [*given] if name not in _in_body()}
    state = AgentState(
        **given,
        agent_id=place.name,
        run_id=place.run_id,
        step_number=place.step,
        status=place.status,
    )
    state.extra.update(extra)
    return state


def _given_out(value: Any) -> Any:
    return value.get() if type(value) is Lazy else value


def lineage_of(state: AgentState) -> Lineage:
    """The agent state's lineage, begun on first use; no field, so it is not compared."""
    lineage: Lineage | None = state.__dict__.get("_lineage")
    if lineage is None:
        lineage = state.__dict__["_lineage"] = Lineage(state.parent_checkpoint_id)
    return lineage


def saved(state: Saveable, header: Header) -> None:
    """Set an agent state's ids from its header; a `State` has them by its lineage."""
    if not isinstance(state, State):
        state.run_id = header.run_id
        state.checkpoint_id = header.id
        state.parent_checkpoint_id = header.parent


def rebuild(form: str, header: Header, texts: Mapping[str, bytes]) -> Saveable:
    """The state that was saved as this record."""
    place = place_of(header)
    if form == "":
        return State.restore(texts, place, header.saved_at, header.id)
    values = {key: decode(text) for key, text in texts.items()}
    values.setdefault("timestamp", header.saved_at)
    state = _agent_state(place, values)
    saved(state, header)
    state.__dict__["_lineage"] = Lineage(header.id)
    return state


def place_of(header: Header) -> Place:
    """The place of a checkpoint, from its header."""
    return Place(
        run_id=header.run_id,
        name=header.name,
        scope=header.scope,
        step=header.step,
        node=header.node,
        kind=header.kind,
        status=header.status,
        tags=header.tags,
        metadata=read_metadata(header.metadata),
    )
