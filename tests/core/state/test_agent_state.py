"""The state of an agent has all the fields that agents use, and loses none it does not know."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.values import exactly_equal, plain_values

from surehold import AgentState, StateSnapshot
from surehold.core.state.state import State
from surehold.errors import DecodeError

DEFAULTS: dict[str, Any] = {
    "agent_id": "",
    "model": "",
    "updated_at": None,
    "step_number": 0,
    "conversation_history": [],
    "memory_contents": {},
    "pending_actions": [],
    "completed_actions": [],
    "budget_spent_usd": 0.0,
    "approval_history": [],
    "tool_usage_counts": {},
    "tool_results_cache": {},
    "active_specialists": [],
    "specialist_invocations": [],
    "workflow_run_id": None,
    "workflow_state": {},
    "control_protocol_state": {},
    "registered_hooks": [],
    "hook_event_history": [],
    "parent_checkpoint_id": None,
    "status": "running",
    "metadata": {},
}
"""All 24 fields but the two that are made anew, with what they are in a new state."""

ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=2))])
times = st.datetimes(timezones=ZONES).map(lambda moment: moment.replace(fold=0))

states = st.builds(
    AgentState,
    agent_id=st.text(max_size=5),
    step_number=st.integers(0, 1000),
    timestamp=times,
    updated_at=st.none() | times,
    conversation_history=st.lists(st.dictionaries(st.text(), plain_values, max_size=2), max_size=2),
    memory_contents=st.dictionaries(st.text(max_size=3), plain_values, max_size=2),
    budget_spent_usd=st.floats(0, 1e6),
    metadata=st.dictionaries(st.text(max_size=3), plain_values, max_size=2),
    status=st.sampled_from(["running", "completed", "failed", "interrupted", "waiting"]),
    extra=st.dictionaries(st.sampled_from(["later_field", "other", "extra"]), plain_values),
)


def test_a_new_state_has_every_field_with_its_default() -> None:
    state = AgentState()
    assert {name: getattr(state, name) for name in DEFAULTS} == DEFAULTS
    assert re.fullmatch(r"ckpt_[0-9a-f]{12}", state.checkpoint_id)
    assert state.checkpoint_id != AgentState().checkpoint_id
    assert abs(datetime.now(UTC) - state.timestamp) < timedelta(minutes=1)
    assert state.timestamp.tzinfo is UTC
    names = {each.name for each in dataclasses.fields(state)}
    assert names == {*DEFAULTS, "checkpoint_id", "timestamp", "run_id", "extra"}
    assert len(DEFAULTS) + 2 == 24


def test_new_states_share_no_container() -> None:
    first, second = AgentState(), AgentState()
    for name, default in DEFAULTS.items():
        if isinstance(default, list | dict):
            assert getattr(first, name) is not getattr(second, name)


@given(states)
def test_a_state_comes_back_from_its_dict(state: AgentState) -> None:
    data = state.to_dict()
    back = AgentState.from_dict(data)
    assert back == state
    for each in dataclasses.fields(state):
        assert exactly_equal(getattr(back, each.name), getattr(state, each.name)), each.name


@given(states)
def test_a_state_comes_back_from_json(state: AgentState) -> None:
    assert AgentState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_a_dict_of_a_state_shares_nothing_with_it() -> None:
    state = AgentState(metadata={"a": [1]}, extra={"later": [1]})
    data = state.to_dict()
    data["metadata"]["a"].append(2)
    data["later"].append(2)
    assert (state.metadata, state.extra) == ({"a": [1]}, {"later": [1]})
    back = AgentState.from_dict(data)
    back.metadata["a"].append(3)
    back.extra["later"].append(3)
    assert data["metadata"] == {"a": [1, 2]} and data["later"] == [1, 2]


def test_reading_a_dict_leaves_it_as_it_is() -> None:
    data = AgentState(metadata={"a": 1}).to_dict() | {"later_field": [1], "status": "error"}
    before = copy.deepcopy(data)
    AgentState.from_dict(data)
    assert data == before and [*data] == [*before]


def test_unknown_fields_are_kept_and_written_again() -> None:
    state = AgentState.from_dict({"agent_id": "a", "later_field": {"x": 1}, "extra": 5})
    assert state.extra == {"later_field": {"x": 1}, "extra": 5}
    data = state.to_dict()
    assert data["later_field"] == {"x": 1} and data["extra"] == 5
    assert AgentState.from_dict(data) == state


def test_an_unknown_field_never_stands_for_a_known_one() -> None:
    state = AgentState(status="failed", extra={"status": "completed"})
    assert state.to_dict()["status"] == "failed"


def test_missing_fields_get_their_defaults() -> None:
    state = AgentState.from_dict({"agent_id": "a"})
    assert state.agent_id == "a"
    assert state.conversation_history == [] and state.status == "running"
    assert state.checkpoint_id.startswith("ckpt_")


@pytest.mark.parametrize("name", ["timestamp", "updated_at"])
def test_times_are_read_from_iso_text(name: str) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    for given_in in (moment, moment.isoformat(), "2026-01-02T03:04:05.000006Z"):
        assert getattr(AgentState.from_dict({name: given_in}), name) == moment
    naive = AgentState.from_dict({name: "2026-01-02T03:04:05"})
    assert getattr(naive, name) == datetime(2026, 1, 2, 3, 4, 5)
    for bad in ("yesterday", 5, ["2026-01-02"]):
        with pytest.raises(DecodeError, match=f"{name} is not an ISO time") as caught:
            AgentState.from_dict({name: bad})
        assert caught.value.field == name


@pytest.mark.parametrize(
    ("written", "read"),
    [("in_progress", "running"), ("error", "failed"), ("completed", "completed"), ("odd", "odd")],
)
def test_statuses_in_other_spellings_are_read(written: str, read: str) -> None:
    assert AgentState.from_dict({"status": written}).status == read


def test_a_snapshot_tells_what_people_ask_first() -> None:
    now = datetime.now(UTC)
    state = AgentState(agent_id="a", step_number=3, conversation_history=[{}, {}], status="failed")
    assert StateSnapshot(state, now).get_summary() == {
        "checkpoint_id": state.checkpoint_id,
        "agent_id": "a",
        "step_number": 3,
        "status": "failed",
        "conversation_turns": 2,
        "pending_actions": 0,
        "completed_actions": 0,
        "budget_spent_usd": 0.0,
        "reason": "manual",
        "created_at": now,
    }
    other = StateSnapshot(State.new({"a": 1}, run_id="r").at(step=2), now, "before a change")
    assert other.get_summary() == {
        "run_id": "r",
        "step": 2,
        "status": "running",
        "reason": "before a change",
        "created_at": now,
    }
