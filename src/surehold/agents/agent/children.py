"""Agents inside agents and fleets: each has its own run, linked to its parent's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from surehold.agents.agent.state_mapping import add_usage
from surehold.agents.tools import Tool, check_tool_name
from surehold.core.state import AgentState
from surehold.core.values import Usage
from surehold.doors.graph import answers_by_id
from surehold.doors.resume import run_inside
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import StopRequests, Waiting, outside, questions_of, waiting_inside
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import Drained, Interrupted, UsageError

if TYPE_CHECKING:
    from surehold.agents.agent.agent import Agent
    from surehold.agents.agent.graph import Start
    from surehold.agents.agent.result import AgentResult


def agent_tool(agent: Agent, name: str | None, description: str) -> Tool:
    """*agent* as a tool that takes a task; its run resumes, so a call may be repeated."""
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
    parent: Agent, tool: Tool, arguments: Mapping[str, Any], key: str
) -> dict[str, Any]:
    """Run the agent behind *tool* on its task, or continue its run.

    The child's run is named after the parent's and the call's idempotency *key*.
    """
    child: Agent = tool.agent
    here = CURRENT_STEP.get()
    run_id, saved = "", here is not None and here.run is not None
    if saved:
        assert here is not None and here.run is not None
        run_id = run_inside(here.run.run_id, key)
    within = Parent(parent.agent_id, parent.state.run_id, parent.forwarded, parent.interrupts)
    result = await child.run_within(within, arguments["task"], run_id)
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


ForwardedAnswers: TypeAlias = dict[str, Any]
"""Answers for the questions of agents inside an execution, by the ids that `outside` gives."""


def take_answers(answers: ForwardedAnswers, start: Start, asked: Sequence[Waiting]) -> None:
    """Move the answers for *asked*, the questions of the run of *start*, to *start*."""
    given = {one.id: outside(one).id for one in asked if outside(one).id in answers}
    start.answers = {own: answers.pop(id) for own, id in given.items()}


class Parent(NamedTuple):
    """The run inside which an agent is executed."""

    name: str
    run_id: str | None
    answers: ForwardedAnswers
    stop: StopRequests | None = None


def hand_out(
    agent: Agent, start: Start, answer: Any, answers: Mapping[str, Any]
) -> ForwardedAnswers:
    """Give *start* the answers for its run; return those for agents inside it.

    An answer without an id needs exactly one open question.
    """
    readers = [manager.reader for manager in managers_of(agent)]
    found = [one for reader in readers for one in waiting_inside(reader, start.run_id)]
    inside = dict.fromkeys(one.id for one in found if one.kind == "question")
    if not inside:
        start.answer, start.answers = answer, answers
        return {}
    own = [one.id for one in questions_of(readers[0], start.run_id)]
    answers = answers_by_id(start.run_id, (*own, *inside), answer, answers)
    start.answers = {id: answers[id] for id in own if id in answers}
    return {id: answers[id] for id in inside if id in answers}


def managers_of(agent: Agent) -> list[AsyncCheckpointManager]:
    """The managers of *agent* and of the agents inside it, each once."""
    found = [] if agent.state_manager is None else [agent.state_manager]
    for tool in agent.tools.values():
        if tool.agent is not None:
            found += [each for each in managers_of(tool.agent) if each not in found]
    return found


def waiting_inside_signal(result: AgentResult) -> Interrupted:
    """The signal that tells the parent what this agent waits for."""
    run_id = result.run_id
    waiting = tuple(outside(one) if one.run_id == run_id else one for one in result.waiting)
    return Interrupted(f"run {run_id!r} waits", run_id=run_id, waiting=waiting)


def pass_on_refusal(error: UsageError) -> None:
    """If *error* refuses an answer, stop the run: the caller must see it, not a model."""
    here = CURRENT_STEP.get()
    refuses = hasattr(error, "question") or hasattr(error, "questions")
    if here is None or here.run is None or not refuses:
        return
    here.run.ledger.refused = error
    raise Interrupted("an answer was refused", run_id=here.run.run_id) from error


def count_invocation(live: AgentState, tool: Tool, outcome: Mapping[str, Any]) -> Any:
    """Record in the parent's state that a child ended; return the child's answer."""
    live.specialist_invocations.append(
        {"agent_id": outcome["agent_id"], "run_id": outcome["run_id"], "tool": tool.name}
    )
    cost, unpriced = outcome["cost_usd"], outcome["unpriced_calls"]
    add_usage(live, Usage(cost_usd=cost, calls=0, unpriced=unpriced))
    return outcome["answer"]
