"""A tool called in a cycle of an agent: approved, recorded, and not called again on a resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.effects import (
    CURRENT_STEP,
    TO_A_MODEL,
    Effect,
    effect,
    effect_behind,
    failure_here,
    shown,
)
from holdfast.checkpoint.hooks import HookEvent
from holdfast.core.state import State
from holdfast.core.values import decode, encode, register_type
from holdfast.errors import EncodeError, RunError, UsageError
from holdfast.runtime.agent import TOOL_FAILED_NAME, count_invocation, delegate, told
from holdfast.runtime.graph import PASS_THROUGH_ERRORS
from holdfast.runtime.models import ToolCall
from holdfast.runtime.tools.approval import ask_approval
from holdfast.runtime.tools.definition import Tool, text_of

if TYPE_CHECKING:
    from holdfast.runtime.agent import BaseAutonomousAgent

__all__ = ["use_tool"]


@dataclass(frozen=True)
class _Outcome:
    """What a tool returned, where the agent's own state was changed meanwhile as well."""

    result: Any
    changed: dict[str, Any]


register_type(_Outcome, "holdfast.ToolOutcome")


@dataclass(frozen=True)
class _Failed:
    """That a tool was called and failed: an outcome as any other, so that it is not called again
    when its cycle is."""

    error: str


register_type(_Failed, TOOL_FAILED_NAME)


async def use_tool(agent: BaseAutonomousAgent, state: State, call: ToolCall, index: int) -> str:
    """What the model is told of *call*, the *index*-th of a cycle that began with *state*."""
    tool = agent.tools.get(call.name)
    if tool is None:
        there = ", ".join(agent.tools) or "none"
        return f"error: there is no tool {call.name!r}; there are: {there}"
    try:
        tool.read(call.arguments)
    except UsageError as error:
        return f"error: {error}"
    arguments: Mapping[str, Any] = call.arguments
    if tool.approval:
        said = await ask_approval(tool, arguments, f"{tool.name}.{index}")
        action = "once" if said.arguments is None else "edited"
        agent.record_approval(tool.name, said.approved, action, dict(arguments))
        facts = {"tool": tool.name, "approved": said.approved}
        agent.note_event(HookEvent.POST_PERMISSION_CHECK, **facts)
        await agent.fire(HookEvent.POST_PERMISSION_CHECK, **facts)
        if not said.approved:
            return f"refused: {said.reason}" if said.reason else "refused by a person"
        arguments = arguments if said.arguments is None else said.arguments
    if tool.checkpoint_before:
        await _save_before(state, tool)
    return await _recorded(agent, tool, dict(arguments))


async def _save_before(state: State, tool: Tool) -> None:
    """Save the run, unless the call is in the journal already."""
    here = CURRENT_STEP.get()
    if here is None or here.session is None:
        return
    counts = dict(here.counts or {})
    place = here.position(tool.name)
    here.counts = counts  # only looked at: the call itself takes this place
    if here.session.ledger.find(Effect, place) is None:
        await here.outer.save_within(state, here.node)


async def _recorded(agent: BaseAutonomousAgent, tool: Tool, arguments: dict[str, Any]) -> str:
    async def call(arguments: dict[str, Any], idempotency_key: str) -> Any:
        return await _called(agent, tool, arguments, idempotency_key)

    event = HookEvent.POST_TOOL_USE if tool.agent is None else HookEvent.POST_SPECIALIST_INVOKE
    agent.record_tool_usage(tool.name)
    try:
        if tool.in_doubt == "retry":
            outcome: Any = await effect_behind(tool.name, call, arguments)
        else:
            outcome = await effect(tool.name, call, arguments)
    except RunError as error:
        if isinstance(error, PASS_THROUGH_ERRORS):
            raise
        agent.note_event(event, tool=tool.name, error=error.message)
        return f"error: {error.message}"
    if isinstance(outcome, _Failed):
        agent.note_event(event, tool=tool.name, error=outcome.error)
        return f"error: {outcome.error}"
    agent.note_event(event, tool=tool.name)
    live = agent.state
    if isinstance(outcome, _Outcome):
        for name, value in outcome.changed.items():
            setattr(live, name, value)
        outcome = outcome.result
    if tool.agent is not None:
        ended = outcome["error"]
        outcome = count_invocation(live, tool, outcome)
        if ended:
            return f"error: {ended}"
    live.tool_results_cache[tool.name] = outcome
    return text_of(outcome)


async def _called(
    agent: BaseAutonomousAgent, tool: Tool, arguments: dict[str, Any], key: str
) -> Any:
    """What the call gives. This is executed only if the journal does not know it yet."""
    agent.say_resumed()
    hooked = tool.agent is None
    before = HookEvent.PRE_TOOL_USE if hooked else HookEvent.PRE_SPECIALIST_INVOKE
    after = HookEvent.POST_TOOL_USE if hooked else HookEvent.POST_SPECIALIST_INVOKE
    facts = {"tool": tool.name, "arguments": arguments}
    veto = await agent.fire(before, **facts)
    if veto:
        raise RunError(f"refused by a hook: {veto}")
    known = told(agent.state)

    async def failed(error: Exception) -> _Failed:
        for name, text in known.items():  # as it will be when the outcome is read from the journal
            setattr(agent.state, name, decode(text))
        await agent.fire(after, **facts, error=shown(error))
        return _Failed(failure_here(error, TO_A_MODEL))

    try:
        if tool.agent is not None:
            result = await delegate(agent, tool, arguments, key)
        else:
            result = _storable(await tool.run(tool.read(arguments), key))
    except PASS_THROUGH_ERRORS:
        raise
    except Exception as error:
        if tool.agent is not None and isinstance(error, UsageError):
            raise  # it is set up wrongly, and no model can mend that
        return await failed(error)
    await agent.fire(after, **facts, result=result)
    try:
        now = told(agent.state)
    except EncodeError as error:
        return await failed(error)
    changed = {name: getattr(agent.state, name) for name in now if now[name] != known[name]}
    return _Outcome(result, changed) if changed else result


def _storable(result: Any) -> Any:
    """*result* or, if the journal cannot hold it, what a model would be told of it."""
    try:
        encode(result)
    except EncodeError:
        return text_of(result)
    return result
