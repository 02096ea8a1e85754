"""An autonomous agent that takes part in a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.effects import CURRENT_STEP, effect
from holdfast.errors import RunError
from holdfast.runtime.agent import BaseAutonomousAgent
from holdfast.runtime.fleet.participants import Assignment, Turn
from holdfast.runtime.models import Usage
from holdfast.runtime.tools import text_of

__all__ = ["AgentParticipant"]


class AgentParticipant:
    """Has an agent do what the manager says; each of its rounds is a run of the agent's own.

    That run is linked to the fleet's, and saved beside it: killed in the middle of a round, the
    agent goes on with its own next cycle.
    """

    remembers = True

    def __init__(self, agent: BaseAutonomousAgent, description: str = "") -> None:
        self.agent = agent
        self.description = description or agent.instructions or agent.agent_id

    async def work(self, assignment: Assignment) -> Turn:
        """Have the agent work, or go on."""
        here = CURRENT_STEP.get()
        assert here is not None and here.session is not None
        session = here.session
        host = BaseAutonomousAgent(state_manager=session.manager, agent_id=assignment.fleet)
        host.state.run_id = session.run_id

        async def call(task: str, idempotency_key: str) -> dict[str, Any]:
            run_id = f"{session.run_id}.{idempotency_key[:12]}"
            result = await self.agent.run_within(host, task, run_id)
            if result.status != "completed":
                why = f": {result.error}" if result.error else ""
                raise RunError(f"agent {self.agent.agent_id} ended with {result.status}{why}")
            return {
                "text": text_of(self.agent.raw_answer),
                "calls": result.budget.model_calls,
                "tokens": result.budget.tokens,
                "cost_usd": None if result.budget.unpriced_calls else result.budget.spent_usd,
            }

        name = assignment.name
        done: dict[str, Any] = await effect(
            name, call, _task(assignment), in_doubt="retry", usage=_spent
        )
        return Turn(text=done["text"], usages=_usages(done))


def _task(assignment: Assignment) -> str:
    """The instruction, and before it what the participant was told and said in earlier rounds."""
    *earlier, now = assignment.messages
    if not earlier:
        return str(now["content"])
    said = "\n\n".join(
        f"{'You said' if one['role'] == 'assistant' else 'You were told'}: {one['content']}"
        for one in earlier
    )
    return f"Earlier:\n\n{said}\n\nNow:\n\n{now['content']}"


def _usages(done: Mapping[str, Any]) -> tuple[Usage, ...]:
    """One for each of the agent's calls, of which only the sum is known."""
    whole = Usage(done["tokens"], 0, done["cost_usd"])
    return (whole, *[Usage(cost_usd=0.0)] * (done["calls"] - 1))


def _spent(done: Mapping[str, Any]) -> dict[str, float]:
    return {"tokens": done["tokens"], "dollars": done["cost_usd"] or 0.0}
