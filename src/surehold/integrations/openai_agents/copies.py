"""Copies of agents whose models and tools a run records."""

from __future__ import annotations

import copy
import weakref
from functools import cache
from typing import Any, cast

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ShellTool,
    Tool,
)
from agents.models.interface import Model
from agents.tool import invoke_function_tool

from surehold.core.context import during
from surehold.errors import UsageError
from surehold.integrations.openai_agents.execution import HERE, AgentExecution, Here
from surehold.integrations.openai_agents.models import RecordedModel

_COPIES = "_surehold_copies"
_ORIGINAL = "_surehold_original"


class _Recorded:
    """Added to the class of an agent's copy."""

    async def get_all_tools(self, run_context: Any) -> list[Tool]:
        """The agent's tools, those of MCP servers too, recorded."""
        tools = await cast("Any", super()).get_all_tools(run_context)
        copies: Copies | None = self.__dict__.get(_COPIES)
        if copies is None:
            return cast("list[Tool]", tools)
        copies.execution.agent = cast("Any", self).name
        return [copies.tool(tool, cast("Any", self).name) for tool in tools]


class _RecordedInvoker:
    """Added to the class of a function tool's invoker."""

    def __agents_bind_function_tool__(self, _: FunctionTool) -> Any:
        return self

    async def __call__(self, ctx: Any, input: str) -> Any:
        return await cast("Any", self)._surehold_invoke(ctx, input)


@cache
def _class(added: type, cls: Any) -> type:
    return type(cls.__name__, (added, cls), {"__module__": cls.__module__})


def _copy(thing: Any, added: type) -> Any:
    """A copy of *thing* whose class has what is *added*; no constructor is called."""
    cls: Any = type(thing)
    made: Any = object.__new__(_class(added, cls))
    made.__dict__.update(thing.__dict__)
    return made


def original_of(agent: Agent[Any]) -> Agent[Any]:
    """The user's agent that *agent* is a copy of, or *agent*."""
    found: Agent[Any] = agent.__dict__.get(_ORIGINAL, agent)
    return found


class Copies:
    """The copies for one execution; each agent has one."""

    def __init__(self, execution: AgentExecution) -> None:
        self.execution = execution
        self._agents: dict[int, Agent[Any]] = {}
        self._tools: dict[int, tuple[Tool, Tool]] = {}

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """The copy of *agent*, with copies of those it hands off to."""
        original = original_of(agent)
        made = self._agents.get(id(original))
        if made is None:
            made = self._agents[id(original)] = _copy(original, _Recorded)
            made.__dict__[_COPIES] = self
            made.__dict__[_ORIGINAL] = original
            if isinstance(original.model, Model):
                made.model = RecordedModel(original.model, self.execution)
            made.handoffs = [self._handoff(one) for one in original.handoffs]
        return made

    def _handoff(self, handoff: Agent[Any] | Handoff[Any, Any]) -> Any:
        if isinstance(handoff, Agent):
            return self.agent(handoff)
        made = copy.copy(handoff)

        async def invoke(ctx: Any, arguments: str) -> Agent[Any]:
            return self.agent(await handoff.on_invoke_handoff(ctx, arguments))

        made.on_invoke_handoff = invoke
        target = handoff._agent_ref() if handoff._agent_ref is not None else None
        if isinstance(target, Agent):
            made._agent_ref = weakref.ref(self.agent(target))
        return made

    def tool(self, tool: Tool, agent: str) -> Tool:
        """The copy of *tool*; a tool that the model's server executes is itself."""
        known = self._tools.get(id(tool))
        if known is None:
            known = self._tools[id(tool)] = tool, self._copied(tool, agent)
        return known[1]

    def _copied(self, tool: Tool, agent: str) -> Tool:
        options = self.execution.rules.of_tool(tool.name)
        if options is False:
            return tool
        if isinstance(tool, FunctionTool):
            return self._function(tool, options)
        if isinstance(tool, CustomTool):
            return self._custom(tool, options)
        local = isinstance(tool, ComputerTool | LocalShellTool | ApplyPatchTool) or (
            isinstance(tool, ShellTool) and tool.executor is not None
        )
        if local:
            raise UsageError(
                f"tool {tool.name!r} of agent {agent!r} acts on this machine, and the run does not"
                " record it",
                hint="give the agent a function tool in its place, or"
                f" SureholdRunner(per_tool={{{tool.name!r}: False}}): every replay executes it"
                " again",
            )
        return tool

    def _function(self, tool: FunctionTool, options: Any) -> FunctionTool:
        execution, name = self.execution, tool.name

        async def invoke(ctx: Any, input: str) -> Any:
            async def call(arguments: str) -> Any:
                return await invoke_function_tool(
                    function_tool=tool, context=ctx, arguments=arguments
                )

            key = execution.key(name, getattr(ctx, "tool_call_id", None) or "")
            if tool._is_agent_tool:  # the calls of the agent in it are recorded one by one
                above = execution.here
                with during(HERE, Here(above.runner, above.run, key)):
                    return await call(input)
            return await execution.tool_call(name, key, options, call, input)

        made = copy.copy(tool)
        made.timeout_seconds = None  # it ends the call, which is inside the record
        invoker = tool.on_invoke_tool
        if hasattr(type(invoker), "prepare_arguments"):  # the SDK asks it before an approval
            recorded = _copy(invoker, _RecordedInvoker)
            recorded._surehold_invoke = invoke
            made.on_invoke_tool = recorded
        else:
            made.on_invoke_tool = invoke
        return made

    def _custom(self, tool: CustomTool, options: Any) -> CustomTool:
        execution, name = self.execution, tool.name

        async def invoke(ctx: Any, input: str) -> Any:
            async def call(arguments: str) -> Any:
                made: Any = tool.on_invoke_tool(ctx, arguments)
                return await made if hasattr(made, "__await__") else made

            key = execution.key(name, getattr(ctx, "tool_call_id", None) or "")
            return await execution.tool_call(name, key, options, call, input)

        made = copy.copy(tool)
        made.on_invoke_tool = invoke
        return made
