"""How the classes that can be saved look to the engine, and how they are made again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.checkpoint.journal.sort_order import Rank
from holdfast.core.records import Header, check_run_id, read_status
from holdfast.core.state import (
    AgentState,
    Lineage,
    Place,
    State,
    indexed_metadata,
    read_metadata,
)
from holdfast.core.values import Lazy, Nature, decode
from holdfast.errors import UsageError

__all__ = ["CheckpointDraft", "Saveable", "agent_state", "draft_of", "rebuild", "saved", "state_of"]

Saveable = State | AgentState

_IN_HEADER = frozenset(
    ["checkpoint_id", "agent_id", "run_id", "step_number", "parent_checkpoint_id", "status"]
)
_IN_BODY = [f.name for f in dataclasses.fields(AgentState) if f.name not in _IN_HEADER]
_LIVE = {name: Nature.LIVE for name in _IN_BODY}


class CheckpointDraft(msgspec.Struct, frozen=True):
    """What the engine needs to know of something that is saved."""

    form: str
    """Which class comes back: "" for State, "agent" for AgentState."""
    place: Place
    values: dict[str, Any]
    natures: Mapping[str, Nature]
    lineage: Lineage
    id: str | None = None
    """The id it is to be saved under, where the caller gives one."""
    fingerprint: str | None = None
    schema: int | None = None
    """The version of its values; None for the newest that `migrations` knows of its name."""
    extra: Callable[[bool], bytes] | None = None
    """Gives what its runtime keeps beside the values, as JSON: all of it if told True, for a
    keyframe; else what came after the checkpoint that this one is built on."""
    fresh: bool = False
    """Begin with a keyframe, whatever was saved in its scope before."""
    rank: Rank | None = None
    """What its scope is ordered by. Such a draft has an id, and is built on the checkpoint that
    its lineage names, whatever was saved since; on none if it names none."""
    alone: bool = False
    """With a rank: built only on what was saved last in its scope, anything else is a conflict."""


def draft_of(state: Saveable, *, new_run_id: str | None = None) -> CheckpointDraft:
    """*state* as the engine sees it.

    An agent's state without a run gets *new_run_id*, or else one that nobody has.
    """
    if isinstance(state, State):
        values, natures = state.for_saving()
        return CheckpointDraft("", state.place, values, natures, state.lineage)
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
    values = {name: getattr(state, name) for name in _IN_BODY}
    given = state.checkpoint_id if state.checkpoint_id != lineage.checkpoint_id else None
    return CheckpointDraft("agent", place, values, _LIVE, lineage, given or None)


def state_of(draft: CheckpointDraft) -> Saveable:
    """What a draft stands for. An agent's state may be changed; deeper values stay frozen."""
    if draft.form:
        return agent_state(draft.place, draft.values)
    made = State.new(draft.values, run_id=draft.place.run_id)
    return made.placed(draft.place)


def agent_state(place: Place, values: Mapping[str, Any]) -> AgentState:
    """The agent's state with these values, lists and dicts copied one level deep."""
    given = {name: copy.copy(_given_out(value)) for name, value in values.items()}
    extra = {name: given.pop(name) for name in [*given] if name not in _LIVE}
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
    """Note on an agent's state where it was saved. A `State` learns it through its lineage."""
    if isinstance(state, AgentState):
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
    extra = {key: values.pop(key) for key in [*values] if key not in _LIVE}
    state = AgentState(
        **values,
        checkpoint_id=header.id,
        agent_id=header.name,
        run_id=header.run_id,
        step_number=header.step,
        parent_checkpoint_id=header.parent,
        status=header.status,
    )
    state.extra.update(extra)
    state.__dict__["_lineage"] = Lineage(header.id)
    return state


def place_of(header: Header) -> Place:
    """Where the state of this record stood."""
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
