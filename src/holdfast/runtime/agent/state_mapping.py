"""An agent's state while it is executed, and the graph's state that it is kept in."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.journal import draft_of
from holdfast.core.state import AgentState, State
from holdfast.core.values import encode, give_out

__all__ = ["LOGS", "absorbed", "begun", "copied", "first_values", "restored", "told", "total"]

LOGS = (
    "conversation_history",
    "completed_actions",
    "approval_history",
    "specialist_invocations",
    "hook_event_history",
)
"""Lists that grow at their end. What is in them is frozen, so that only the new is looked at."""

_TOLD = (
    "memory_contents",
    "workflow_run_id",
    "workflow_state",
    "control_protocol_state",
    "metadata",
)
"""What the user's code may change while a tool is called."""


def first_values(task: str, model: str) -> dict[str, Any]:
    """What a run begins with."""
    state = AgentState(agent_id="-", model=model)
    begun(state, task)
    return _values(state)


def begun(state: AgentState, task: str) -> None:
    """Have *state* be one of a run on *task*, which a state that a program made may not be."""
    if "task" in state.extra:
        return
    used = {"model_calls": 0, "unpriced_calls": 0, "tokens": 0, "seconds": 0.0}
    cost = {"last_cycle_usd": 0.0, "growth_usd": 0.0}
    state.extra |= {"task": task, "cycles_used": state.step_number, "usage": {**used, **cost}}
    state.conversation_history.append({"role": "user", "content": task})


def total(usage: dict[str, Any], **more: float) -> None:
    """Add to what was used."""
    for name, amount in more.items():
        usage[name] += amount


def restored(state: State) -> AgentState:
    """The agent's state that a graph's state holds, to be changed freely; logs by appending."""
    values: dict[str, Any] = {
        name: list(state[name]) if name in LOGS else give_out(state[name]) for name in state
    }
    values |= {"agent_id": state.name, "run_id": state.run_id, "step_number": state.step}
    if state.checkpoint_id is not None:
        values["checkpoint_id"] = state.checkpoint_id
    return AgentState(**values, status=state.status)


def copied(state: AgentState) -> AgentState:
    """A copy whose lists and dicts can be changed without changing those of *state*."""
    values = {each.name: getattr(state, each.name) for each in dataclasses.fields(state)}
    plain: dict[str, Any] = {
        name: type(value)(value) if isinstance(value, dict | list) else value
        for name, value in values.items()
    }
    return type(state)(**plain)


def absorbed(state: State, live: AgentState) -> State:
    """The graph's state with all that *live* holds."""
    values = _values(live)
    logs = {name: values.pop(name) for name in LOGS}
    state = state.without("timestamp").merge(values)
    for name, log in logs.items():
        state = _grown(state, name, log)
    return state


def _values(state: AgentState) -> dict[str, Any]:
    values = draft_of(state).values
    del values["timestamp"]  # the checkpoint has one of its own
    return values


def _grown(state: State, name: str, log: Sequence[Any]) -> State:
    old = state.get(name, ())
    known = len(old)
    if known and len(log) >= known and all(map(operator.is_, old, log)):
        return state.append(name, *log[known:]) if len(log) > known else state
    return state.set(name, log)


def told(state: AgentState) -> dict[str, bytes]:
    """The fields that the user's code may change meanwhile, as texts to be compared later."""
    return {name: encode(getattr(state, name)) for name in _TOLD}
