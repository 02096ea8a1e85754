"""Agents as tools of other agents: each has a run of its own, linked to its parent's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.session import HERE
from holdfast.core.agent_state import AgentState
from holdfast.errors import Drained
from holdfast.runtime.tools import Tool, check_tool_name

if TYPE_CHECKING:
    from holdfast.runtime.agent import BaseAutonomousAgent

__all__ = ["agent_tool", "count_invocation", "delegate"]


def agent_tool(agent: BaseAutonomousAgent, name: str | None, description: str) -> Tool:
    """*agent* as a tool that takes a task. Going on with it is safe, so it is called again."""
    schema = {
        "type": "object",
        "properties": {"task": {"type": "string", "description": "What it is to do."}},
        "required": ["task"],
        "additionalProperties": False,
    }
    return Tool(
        name=check_tool_name(agent.agent_id if name is None else name),
        description=description or f"Have the agent {agent.agent_id} do a task.",
        parameters=schema,
        call=agent.run,
        types={"task": str},
        idempotent=True,
        agent=agent,
    )


async def delegate(
    parent: BaseAutonomousAgent, tool: Tool, arguments: Mapping[str, Any], key: str
) -> dict[str, Any]:
    """Have the agent behind *tool* do its task, or go on with it.

    The child's run is named by the parent's and by *key*, which is that of the place in it.
    """
    child: BaseAutonomousAgent = tool.agent
    here = HERE.get()
    run_id, saved = "", here is not None and here.session is not None
    if saved:
        assert here is not None and here.session is not None
        run_id = f"{here.session.run_id}.{key[:12]}"
    result = await child.run_within(parent, arguments["task"], run_id)
    if result.status == "interrupted":
        raise Drained(
            f"run {result.run_id!r} was interrupted", run_id=result.run_id, node="", saved=saved
        )
    why = f": {result.error}" if result.error else ""
    ended = f"agent {child.agent_id} ended with {result.status}{why}"
    return {
        "error": "" if result.status == "completed" else ended,
        "agent_id": child.agent_id,
        "run_id": result.run_id,
        "answer": child.raw_answer,
        "cost_usd": result.budget.spent_usd,
        "unpriced_calls": result.budget.unpriced_calls,
    }


def count_invocation(live: AgentState, tool: Tool, outcome: Mapping[str, Any]) -> Any:
    """Note in the parent's state that a child ended; gives the child's answer."""
    live.specialist_invocations.append(
        {"agent_id": outcome["agent_id"], "run_id": outcome["run_id"], "tool": tool.name}
    )
    live.budget_spent_usd += outcome["cost_usd"]
    live.extra["usage"]["unpriced_calls"] += outcome["unpriced_calls"]
    return outcome["answer"]
