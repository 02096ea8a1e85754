"""Conversion between an agent's live state and the state of its graph."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from surehold.core.state import AgentState, State
from surehold.core.values import Usage, encode, give_out
from surehold.engine.journal import draft_of
from surehold.errors import EncodeError

LOGS = (
    "conversation_history",
    "completed_actions",
    "approval_history",
    "specialist_invocations",
    "hook_event_history",
)
"""Lists that grow at their end. Their items are frozen, so only new ones are looked at."""

_USER_FIELDS = (
    "memory_contents",
    "workflow_run_id",
    "workflow_state",
    "control_protocol_state",
    "metadata",
)
"""Fields that the user's code may change during a tool call."""

_GIVEN = ("memory_contents", "metadata")
"""Fields that the user's code may set before a run."""


class GivenFields:
    """Memory and metadata that a program sets outside of runs, for runs that begin."""

    def __init__(self) -> None:
        self._given: dict[str, dict[str, Any]] = {name: {} for name in _GIVEN}
        self._left: dict[str, dict[str, bytes]] = {name: {} for name in _GIVEN}

    def in_new_run(self, state: AgentState, run_id: str) -> AgentState:
        """The first state of a run; *state* is the agent's own before it."""
        for name, left in self._left.items():
            now = getattr(state, name)
            self._given[name] |= {k: v for k, v in now.items() if left.get(k) != _text(v)}
        fields: dict[str, Any] = copy.deepcopy(self._given)
        return AgentState(agent_id=state.agent_id, run_id=run_id, **fields)

    def after_run(self, state: AgentState) -> None:
        """Know what a run has left, which is not for the next run."""
        for name in _GIVEN:
            self._left[name] = {k: _text(v) for k, v in getattr(state, name).items()}


def _text(value: Any) -> bytes:
    try:
        return encode(value)
    except EncodeError:  # the save says so, with the path
        return repr(value).encode()


def first_values(task: str, model: str, given: AgentState) -> dict[str, Any]:
    """The first values of a run, with the fields that the program has *given*."""
    fields: dict[str, Any] = {name: getattr(given, name) for name in _GIVEN}
    state = AgentState(agent_id="-", model=model, **fields)
    begun(state, task)
    return _values(state)


def begun(state: AgentState, task: str) -> None:
    """Make *state* one of a run on *task*, which a state made in code may not be yet."""
    if "task" not in state.extra:
        state.extra |= {
            "task": task,
            "cycles_used": state.step_number,
            "usage": Usage.none().to_dict(),
        }
        state.conversation_history.append({"role": "user", "content": task})
    before = state.extra.pop("usage_before", None)
    if before is not None:  # of a cycle that did not complete: its calls are counted when replayed
        _set_usage(state, Usage.read(before))
    state.extra.setdefault("cycle_cost", {"last_usd": 0.0, "growth_usd": 0.0})


def usage_of(state: AgentState) -> Usage:
    """Usage of the agent; the dollars include agents inside it."""
    known = Usage.read(state.extra.get("usage", {}) or Usage.none().to_dict())
    return dataclasses.replace(known, cost_usd=state.budget_spent_usd)


def add_usage(state: AgentState, usage: Usage) -> None:
    """Add to what the agent has used."""
    _set_usage(state, usage_of(state) + usage)


def _set_usage(state: AgentState, usage: Usage) -> None:
    state.extra["usage"] = usage.to_dict()
    state.budget_spent_usd = usage.cost_usd or 0.0


def restored(state: State) -> AgentState:
    """The agent's state in a graph's state, mutable; logs only by appending."""
    values: dict[str, Any] = {
        name: list(state[name]) if name in LOGS else give_out(state[name]) for name in state
    }
    values |= {"agent_id": state.name, "run_id": state.run_id, "step_number": state.step}
    if state.checkpoint_id is not None:
        values["checkpoint_id"] = state.checkpoint_id
    return AgentState(**values, status=state.status)


def copied(state: AgentState) -> AgentState:
    """A copy with its own lists and dicts."""
    values = {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}
    plain: dict[str, Any] = {
        name: type(value)(value) if isinstance(value, dict | list) else value
        for name, value in values.items()
    }
    return type(state)(**plain)


def absorbed(state: State, live: AgentState) -> State:
    """The graph's state with the values of *live*."""
    values = _values(live)
    logs = {name: values.pop(name) for name in LOGS}
    state = state.without("timestamp").merge(values)
    for name, log in logs.items():
        state = _grown(state, name, log)
    return state


def _values(state: AgentState) -> dict[str, Any]:
    values = draft_of(state).values
    del values["timestamp"]  # the checkpoint has its own
    return values


def _grown(state: State, name: str, log: Sequence[Any]) -> State:
    old = state.get(name, ())
    known = len(old)
    if known and len(log) >= known and all(map(operator.is_, old, log)):
        return state.append(name, *log[known:]) if len(log) > known else state
    return state.set(name, log)


def user_fields(state: AgentState) -> dict[str, bytes]:
    """The fields that the user's code may change, as texts to be compared later."""
    return {name: encode(getattr(state, name)) for name in _USER_FIELDS}
