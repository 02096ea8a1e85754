"""What a run of an agent came to, and the line that says what a resume saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint.effects import Waiting
from holdfast.core.state import AgentState
from holdfast.runtime.agent.config import AutonomousConfig
from holdfast.runtime.models import shown
from holdfast.runtime.tools import Answer

__all__ = ["AgentResult", "Budget", "result_of", "resume_line"]


@dataclass(frozen=True)
class Budget:
    """What a run spent."""

    spent_usd: float
    limit_usd: float | None
    tokens: int
    model_calls: int
    unpriced_calls: int
    """Calls of models whose price is not known; what they cost is not in *spent_usd*."""

    def __str__(self) -> str:
        spent = None if self.unpriced_calls and not self.spent_usd else self.spent_usd
        limit = "" if self.limit_usd is None else f" of {shown(self.limit_usd)}"
        return f"{shown(spent)}{limit}, {self.tokens:,} tokens in {self.model_calls} calls"


@dataclass(frozen=True)
class AgentResult:
    """How a run ended, or where it stands."""

    task: str
    status: str
    """completed, failed, interrupted, budget_exhausted or max_cycles_reached."""
    answer: Any
    """The text, or what the signature asked for; None if the run is not completed."""
    cycles_used: int
    """Over the whole run, resumes included."""
    total_cycles: int
    """How many it may use."""
    plan: list[dict[str, Any]]
    budget: Budget
    error: str | None
    run_id: str
    waiting: tuple[Waiting, ...] = ()
    """What an interrupted run waits for: approvals, and calls that nobody knows the outcome of."""

    def __getitem__(self, name: str) -> Any:
        """The same by name: ``result["status"]``."""
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """All of it as a dict."""
        return {**asdict(self), "answer": self.answer}


def result_of(
    state: AgentState,
    config: AutonomousConfig,
    signature: Answer | None,
    waiting: tuple[Waiting, ...],
) -> AgentResult:
    """What a run that left *state* came to."""
    extra = state.extra
    used = extra.get("usage", {})
    raw = extra.get("answer") if state.status == "completed" else None
    return AgentResult(
        task=extra.get("task", ""),
        status=state.status,
        answer=signature.read(raw) if signature is not None and raw is not None else raw,
        cycles_used=extra.get("cycles_used", 0),
        total_cycles=config.max_cycles,
        plan=[dict(item) for item in (*state.completed_actions, *state.pending_actions)],
        budget=Budget(
            spent_usd=state.budget_spent_usd,
            limit_usd=config.budget_usd,
            tokens=used.get("tokens", 0),
            model_calls=used.get("model_calls", 0),
            unpriced_calls=used.get("unpriced_calls", 0),
        ),
        error=state.metadata.get("error"),
        run_id=state.run_id or "",
        waiting=waiting,
    )


def resume_line(state: AgentState, max_cycles: int) -> str:
    """What a resume saves, in one line.

    >>> usage = {"model_calls": 41, "unpriced_calls": 0, "tokens": 18400, "seconds": 182.0}
    >>> state = AgentState(agent_id="researcher", budget_spent_usd=0.381)
    >>> state.extra.update(cycles_used=41, usage=usage)
    >>> before, _, after = resume_line(state, 50).partition(" saved ")
    >>> before
    'resumed researcher at cycle 42 of 50: 41 model calls not repeated,'
    >>> after
    '18,400 tokens, $0.38, 3 min'
    """
    given_up = state.extra.get("given_up", {})  # since it was taken back: that is done anew
    usage = {name: used - given_up.get(name, 0) for name, used in state.extra["usage"].items()}
    calls, spent = usage["model_calls"], state.budget_spent_usd - given_up.get("usd", 0.0)
    cost = shown(None if usage["unpriced_calls"] and not spent else spent)
    return (
        f"resumed {state.agent_id} at cycle {state.extra['cycles_used'] + 1} of {max_cycles}:"
        f" {calls} model call{'' if calls == 1 else 's'} not repeated,"
        f" saved {usage['tokens']:,} tokens, {cost}, {_duration(usage['seconds'])}"
    )


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
