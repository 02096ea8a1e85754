"""The typed state of an autonomous agent: mutable, compared in full at each save."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self
from uuid import uuid4

from surehold.core.records import STATUSES, read_status
from surehold.errors import DecodeError, UsageError


def _checkpoint_id() -> str:
    return f"ckpt_{uuid4().hex[:12]}"


@dataclass
class AgentState:
    """Everything an agent carries from one cycle to the next.

    It belongs to *run_id*. Without one, its first save continues the run that the same manager
    saved or resumed for *agent_id* before, if its step is later and that run is not completed;
    otherwise it begins a run. Short plain values of `metadata` can be searched, and are stored in
    the clear. Fields that this version does not know are kept in `extra`.

    >>> state = AgentState(agent_id="researcher", step_number=3)
    >>> AgentState.from_dict(state.to_dict()) == state
    True
    """

    checkpoint_id: str = field(default_factory=_checkpoint_id)
    agent_id: str = ""
    run_id: str | None = None
    model: str = ""
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated_at: datetime | None = None
    step_number: int = 0

    conversation_history: list[dict[str, Any]] = field(default_factory=list)
    memory_contents: dict[str, Any] = field(default_factory=dict)

    pending_actions: list[dict[str, Any]] = field(default_factory=list)
    completed_actions: list[dict[str, Any]] = field(default_factory=list)

    budget_spent_usd: float = 0.0
    approval_history: list[dict[str, Any]] = field(default_factory=list)

    tool_usage_counts: dict[str, int] = field(default_factory=dict)
    tool_results_cache: dict[str, Any] = field(default_factory=dict)

    active_specialists: list[str] = field(default_factory=list)
    specialist_invocations: list[dict[str, Any]] = field(default_factory=list)

    workflow_run_id: str | None = None
    workflow_state: dict[str, Any] = field(default_factory=dict)

    control_protocol_state: dict[str, Any] = field(default_factory=dict)

    registered_hooks: list[dict[str, Any]] = field(default_factory=list)
    hook_event_history: list[dict[str, Any]] = field(default_factory=list)

    parent_checkpoint_id: str | None = None
    status: str = "running"
    metadata: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = read_status(self.status)
        if self.status not in STATUSES:
            raise UsageError(
                f"status is {self.status!r}", hint=f"one of {', '.join(STATUSES)}", field="status"
            )

    def to_dict(self) -> dict[str, Any]:
        """A copy of all fields, times as ISO text, those of `extra` beside the others."""
        made = {f.name: copy.deepcopy(getattr(self, f.name)) for f in dataclasses.fields(self)}
        for name, value in made.pop("extra").items():
            made.setdefault(name, value)
        for name in _TIMES:
            if made[name] is not None:
                made[name] = made[name].isoformat()
        return made

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The state that *data* describes; *data* does not change."""
        known = {f.name for f in dataclasses.fields(cls)} - {"extra"}
        values = copy.deepcopy(dict(data))
        extra = {name: values.pop(name) for name in [*values] if name not in known}
        for name in _TIMES:
            if values.get(name) is not None:
                values[name] = _read_time(name, values[name])
        status = read_status(values.pop("status", "running"))
        made = cls(**values, extra=extra)
        made.status = status  # a newer version, or another system, may know more of them
        return made


def _read_time(name: str, value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{name} is not an ISO time: {value!r}", field=name) from error


_TIMES = ("timestamp", "updated_at")


@dataclass(frozen=True)
class StateSnapshot:
    """A copy of a state at one moment, and why it was taken. It is not stored."""

    state: Any
    created_at: datetime
    snapshot_reason: str = "manual"

    def get_summary(self) -> dict[str, Any]:
        """The few facts a person asks for first."""
        state = self.state
        if not isinstance(state, AgentState):
            facts = {"run_id": state.run_id, "step": state.step, "status": state.status}
            return {**facts, "reason": self.snapshot_reason, "created_at": self.created_at}
        return {
            "checkpoint_id": state.checkpoint_id,
            "agent_id": state.agent_id,
            "step_number": state.step_number,
            "status": state.status,
            "conversation_turns": len(state.conversation_history),
            "pending_actions": len(state.pending_actions),
            "completed_actions": len(state.completed_actions),
            "budget_spent_usd": state.budget_spent_usd,
            "reason": self.snapshot_reason,
            "created_at": self.created_at,
        }
