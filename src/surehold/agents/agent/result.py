"""Result of an agent's run, and the line that says what a resume saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from surehold.agents.agent.config import AgentConfig
from surehold.agents.agent.state_mapping import usage_of
from surehold.agents.models import shown
from surehold.agents.tools import AnswerFormat
from surehold.core.state import AgentState
from surehold.core.values import Usage
from surehold.doors.result import ModelSpent, RunResult, Spent
from surehold.engine.runs import Waiting


@dataclass(frozen=True)
class Budget:
    """Money and tokens that a run spent."""

    spent_usd: float
    limit_usd: float | None
    tokens: int
    model_calls: int
    unpriced_calls: int
    """Calls of models whose price is unknown; *spent_usd* does not contain them."""

    def __str__(self) -> str:
        spent = None if self.unpriced_calls and not self.spent_usd else self.spent_usd
        limit = "" if self.limit_usd is None else f" of {shown(self.limit_usd)}"
        return f"{shown(spent)}{limit}, {self.tokens:,} tokens in {self.model_calls} calls"


class AgentResult(RunResult[Any], frozen=True, kw_only=True):
    """The end of an agent's run, or what it waits for.

    The status is ``completed``, ``waiting``, ``failed``, ``interrupted``, ``budget_exhausted`` or
    ``max_cycles_reached``. The `value` is the answer.
    """

    task: str
    answer: Any
    """The text, or what the signature asked for; None if the run is not completed."""
    cycles_used: int
    """Over the whole run, resumes included."""
    total_cycles: int
    """Number of cycles that it may use."""
    plan: list[dict[str, Any]]
    budget: Budget
    error: str | None = None

    def __getitem__(self, name: str) -> Any:
        """A field by name: ``result["status"]``."""
        if name not in self.__struct_fields__ and name != "value":
            raise KeyError(name)
        return getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """The result as a dict, without the state."""
        made = msgspec.structs.asdict(self)
        del made["state"], made["returned"]
        spent = {name: msgspec.structs.asdict(made[name]) for name in ("usage", "saved")}
        return {**made, **spent, "budget": asdict(self.budget)}


def result_of(
    state: AgentState,
    config: AgentConfig,
    signature: AnswerFormat | None,
    waiting: tuple[Waiting, ...],
    saved: Spent,
) -> AgentResult:
    """The result of a run that left *state*; *saved* is what it did not spend again."""
    extra = state.extra
    used = usage_of(state)
    raw = extra.get("answer") if state.status == "completed" else None
    answer = signature.read(raw) if signature is not None and raw is not None else raw
    return AgentResult(
        task=extra.get("task", ""),
        status=state.status,
        answer=answer,
        returned=answer,
        state=state,
        step=state.step_number,
        usage=ModelSpent.of(used.to_dict()),
        saved=saved,
        cycles_used=extra.get("cycles_used", 0),
        total_cycles=config.max_cycles,
        plan=[dict(item) for item in (*state.completed_actions, *state.pending_actions)],
        budget=Budget(
            spent_usd=state.budget_spent_usd,
            limit_usd=config.budget_usd,
            tokens=used.tokens,
            model_calls=used.calls,
            unpriced_calls=used.unpriced_calls,
        ),
        error=state.metadata.get("error"),
        run_id=state.run_id or "",
        waiting=waiting,
    )


def resume_line(state: AgentState, max_cycles: int) -> str:
    """One line that says what a resume saves.

    >>> state = AgentState(agent_id="researcher", budget_spent_usd=0.381)
    >>> usage = Usage(18400, 0, 0.381, 182.0, calls=41)
    >>> state.extra.update(cycles_used=41, usage=usage.to_dict())
    >>> before, _, after = resume_line(state, 50).partition(" saved ")
    >>> before
    'resumed researcher at cycle 42 of 50: 41 model calls not repeated,'
    >>> after
    '18,400 tokens, $0.38, 3 min'
    >>> resume_line(state, 41).partition(":")[0]
    'resumed researcher after cycle 41'
    """
    abandoned = state.extra.get("given_up")  # since a rewind: that is done again
    usage = usage_of(state) - (Usage.read(abandoned) if abandoned else Usage.none())
    cost = shown(None if usage.unpriced and not usage.cost_usd else usage.cost_usd)
    used = state.extra["cycles_used"]
    where = f"at cycle {used + 1} of {max_cycles}" if used < max_cycles else f"after cycle {used}"
    return (
        f"resumed {state.agent_id} {where}:"
        f" {usage.calls} model call{'' if usage.calls == 1 else 's'} not repeated,"
        f" saved {usage.tokens:,} tokens, {cost}, {_duration(usage.seconds)}"
    )


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
