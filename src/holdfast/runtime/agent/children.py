"""Agents as tools of other agents: each has a run of its own, linked to its parent's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.effects import CURRENT_STEP, Waiting, outside, questions_of, waiting_inside
from holdfast.checkpoint.manager import StateManager
from holdfast.core.state import AgentState
from holdfast.errors import Drained, Interrupted, UsageError
from holdfast.runtime.agent.inside import run_inside
from holdfast.runtime.graph import NOTHING
from holdfast.runtime.tools import Tool, check_tool_name

if TYPE_CHECKING:
    from holdfast.runtime.agent.agent import BaseAutonomousAgent
    from holdfast.runtime.agent.graph import Start
    from holdfast.runtime.agent.result import AgentResult

__all__ = [
    "ForwardedAnswers",
    "agent_tool",
    "count_invocation",
    "delegate",
    "hand_out",
    "parked_inside",
    "pass_on_refusal",
]


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
    here = CURRENT_STEP.get()
    run_id, saved = "", here is not None and here.session is not None
    if saved:
        assert here is not None and here.session is not None
        run_id = run_inside(here.session.run_id, key)
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


class ForwardedAnswers:
    """Answers that came with an execution for the agents inside it; those that ask take them."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        """*answers* by the ids that the questions have `outside`."""
        self._answers = dict(answers or {})

    @property
    def left(self) -> bool:
        """Whether there are answers that nobody took."""
        return bool(self._answers)

    def give(self, start: Start, asked: Sequence[Waiting]) -> None:
        """Lay out those for *asked*, the questions of the run that *start* goes on with."""
        given = {one.id: outside(one).id for one in asked if outside(one).id in self._answers}
        start.answers = {own: self._answers.pop(id) for own, id in given.items()}


def hand_out(
    agent: BaseAutonomousAgent, start: Start, answer: Any, answers: Mapping[str, Any]
) -> ForwardedAnswers:
    """Lay the answers out for the run that *start* names; gives those for agents inside it.

    Where agents inside ask, an answer that does not say what for must have but one to be for.
    """
    readers = [manager.reader for manager in _managers(agent)]
    found = [one for reader in readers for one in waiting_inside(reader, start.run_id)]
    inside = dict.fromkeys(one.id for one in found if one.kind == "question")
    if not inside:
        start.answer, start.answers = answer, answers
        return ForwardedAnswers()
    own = [one.id for one in questions_of(readers[0], start.run_id)]
    asked = (*own, *inside)
    hint = f"give answers={{id: answer}}; the open ones: {', '.join(asked)}"
    if answer is not NOTHING:
        if len(asked) != 1:
            raise UsageError(
                f"answer= is for one question, and run {start.run_id!r} waits for {len(asked)}",
                hint=hint,
                questions=asked,
            )
        answers = {**answers, asked[0]: answer}
    for id in answers:
        if id not in asked:
            raise UsageError(
                f"run {start.run_id!r} does not wait for {id!r}", hint=hint, questions=asked
            )
    start.answers = {id: answers[id] for id in own if id in answers}
    return ForwardedAnswers({id: answers[id] for id in inside if id in answers})


def _managers(agent: BaseAutonomousAgent) -> list[StateManager]:
    """What *agent* and those inside it are saved through, each once."""
    found = [] if agent.state_manager is None else [agent.state_manager]
    for tool in agent.tools.values():
        if tool.agent is not None:
            found += [each for each in _managers(tool.agent) if each not in found]
    return found


def parked_inside(result: AgentResult) -> Interrupted:
    """What tells the agent around this one that it waits, and for what."""
    run_id = result.run_id
    waiting = tuple(outside(one) if one.run_id == run_id else one for one in result.waiting)
    return Interrupted(f"run {run_id!r} waits", run_id=run_id, waiting=waiting)


def pass_on_refusal(error: UsageError) -> None:
    """If *error* refuses an answer, park the run: whoever gave the answer is told, no model."""
    here = CURRENT_STEP.get()
    refuses = hasattr(error, "question") or hasattr(error, "questions")
    if here is None or here.session is None or not refuses:
        return
    here.session.ledger.refused = error
    raise Interrupted("an answer was refused", run_id=here.session.run_id) from error


def count_invocation(live: AgentState, tool: Tool, outcome: Mapping[str, Any]) -> Any:
    """Note in the parent's state that a child ended; gives the child's answer."""
    live.specialist_invocations.append(
        {"agent_id": outcome["agent_id"], "run_id": outcome["run_id"], "tool": tool.name}
    )
    live.budget_spent_usd += outcome["cost_usd"]
    live.extra["usage"]["unpriced_calls"] += outcome["unpriced_calls"]
    return outcome["answer"]
