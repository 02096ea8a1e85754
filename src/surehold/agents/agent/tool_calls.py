"""Tool calls of an agent: hooks, approvals in its state, other agents as tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surehold.agents.agent.children import count_invocation, delegate
from surehold.agents.agent.state_mapping import user_fields
from surehold.agents.tools import (
    Approval,
    Tool,
    ToolCalls,
    ToolFailure,
    storable,
    text_of,
    tool_failure,
)
from surehold.core.policy import OF_THE_RUN
from surehold.core.records import Effect
from surehold.core.state import State
from surehold.core.values import decode, register_type, with_changes
from surehold.engine.hooks import HookEvent
from surehold.engine.runs.effects import shown
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import EncodeError, RunError, UsageError

if TYPE_CHECKING:
    from surehold.agents.agent.agent import Agent


@dataclass(frozen=True)
class _Outcome:
    """A tool's result with the agent's state fields that changed during the call."""

    result: Any
    changed: dict[str, Any]


register_type(_Outcome, "surehold.ToolOutcome")


class AgentToolCalls(ToolCalls):
    """Calls the tools of *agent* in a cycle that began with *state*."""

    def __init__(self, agent: Agent, state: State) -> None:
        super().__init__(agent.tools)
        self._agent = agent
        self._state = state
        self._before: dict[str, bytes] | None = None
        """The fields that the user's code may change, before calls that run in parallel."""

    async def approve(self, tool: Tool, arguments: Mapping[str, Any], index: int) -> Approval:
        """Ask a person, and keep the answer in the agent's state."""
        agent = self._agent
        said = await super().approve(tool, arguments, index)
        action = "once" if said.arguments is None else "edited"
        agent.record_approval(tool.name, said.approved, action, dict(arguments))
        facts = {"tool": tool.name, "approved": said.approved}
        agent.note_event(HookEvent.POST_PERMISSION_CHECK, **facts)
        await agent.fire(HookEvent.POST_PERMISSION_CHECK, **facts)
        return said

    async def before_call(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Save the run where the tool wants it, unless the journal holds the call already."""
        self._agent.record_tool_usage(tool.name)
        here = CURRENT_STEP.get()
        if not tool.checkpoint_before or here is None or here.run is None:
            return
        counts = dict(here.counts or {})
        place = here.place(tool.name, None)
        here.counts = counts  # only looked at: the call itself takes this place
        if here.run.ledger.find(Effect, place) is None:
            await here.outer.save_within(self._state, here.node)

    def begin_together(self) -> None:
        """Let each call change fields of its own: who changed what must be known."""
        self._before = user_fields(self._agent.state)

    def end_together(self) -> None:
        """Let calls change the agent's state itself again."""
        self._before = None

    async def perform(self, tool: Tool, arguments: dict[str, Any], key: str) -> Any:
        """Call *tool* between its hooks; return the outcome with what it changed."""
        if self._before is None:
            return await self._performed(tool, arguments, key)
        fields = {name: decode(text) for name, text in self._before.items()}
        with self._agent.seen_with(fields):
            return await self._performed(tool, arguments, key)

    async def _performed(self, tool: Tool, arguments: dict[str, Any], key: str) -> Any:
        agent = self._agent
        agent.say_resumed()
        before, after = _events(tool)
        facts = {"tool": tool.name, "arguments": arguments}
        veto = await agent.fire(before, **facts)
        if veto:
            raise RunError(f"refused by a hook: {veto}")
        known = user_fields(agent.state)

        async def failed(error: Exception) -> ToolFailure:
            for name, text in known.items():  # as it will be when the outcome is replayed
                setattr(agent.state, name, decode(text))
            await agent.fire(after, **facts, error=shown(error))
            return tool_failure(error, tool.policy)

        try:
            if tool.agent is not None:
                result = await delegate(agent, tool, arguments, key)
            else:
                result = storable(await tool.run(tool.read(arguments), key))
        except OF_THE_RUN:
            raise
        except Exception as error:
            if tool.agent is not None and isinstance(error, UsageError):
                raise  # the agent is set up wrongly, and a model cannot fix that
            return await failed(error)
        await agent.fire(after, **facts, result=result)
        try:
            now = user_fields(agent.state)
        except EncodeError as error:
            return await failed(error)
        changed = {name: getattr(agent.state, name) for name in now if now[name] != known[name]}
        return _Outcome(result, changed) if changed else result

    def text(self, tool: Tool, outcome: Any) -> str:
        """Put an outcome into the agent's state; return the text for the model."""
        agent = self._agent
        _, after = _events(tool)
        if isinstance(outcome, ToolFailure):
            agent.note_event(after, tool=tool.name, error=outcome.error)
            return super().text(tool, outcome)
        agent.note_event(after, tool=tool.name)
        live = agent.state
        if isinstance(outcome, _Outcome):
            for name, value in outcome.changed.items():
                setattr(live, name, self._merged(name, value))
            outcome = outcome.result
        if tool.agent is not None:
            ended = outcome["error"]
            outcome = count_invocation(live, tool, outcome)
            if ended:
                return f"error: {ended}"
        live.tool_results_cache[tool.name] = outcome
        return text_of(outcome)

    def _merged(self, name: str, value: Any) -> Any:
        """The field with the changes that one of several parallel calls made in it."""
        if self._before is None:
            return value
        known, before = getattr(self._agent.state, name), decode(self._before[name])
        if not all(isinstance(one, dict) for one in (known, before, value)):
            return value
        return with_changes(known, before, value)


def _events(tool: Tool) -> tuple[HookEvent, HookEvent]:
    """The hook events before and after a call of *tool*."""
    if tool.agent is None:
        return HookEvent.PRE_TOOL_USE, HookEvent.POST_TOOL_USE
    return HookEvent.PRE_SPECIALIST_INVOKE, HookEvent.POST_SPECIALIST_INVOKE
