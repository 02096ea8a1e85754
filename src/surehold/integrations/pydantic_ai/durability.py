"""Durable Pydantic AI agents.

```python
agent = Agent("openai:gpt-5", name="support", capabilities=[SureholdDurability()])
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from surehold.agents.tools import ask_approval
from surehold.doors.functions import now
from surehold.engine.runs import OpenRun
from surehold.engine.runs.positions import recorded_value
from surehold.errors import EncodeError, Signal, UsageError
from surehold.integrations.calls import CallOptions, open_context
from surehold.integrations.pydantic_ai.recording import (
    AGENT_RUNS,
    METADATA,
    AgentRun,
    CallRules,
    RecordedOperations,
)


def _not_storable(error: Exception) -> EncodeError:
    return EncodeError(
        f"the outcome of a call has no JSON form: {error}",
        hint="let the tool return text, numbers, lists, dicts, dataclasses or pydantic models",
    )


class SureholdDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable: inside a run, its model and tool calls are recorded.

    A resumed run returns the recorded outcomes, and continues inside the turn in which it was
    killed. Outside a run the agent is as it was.

    *model* and *tools* are options for the calls of the model and of all tools; a tool's own are
    in its metadata: ``@agent.tool_plain(metadata={"surehold": {"in_doubt": "retry"}})``. A model
    is called again if the process died during the call; about a tool a person is asked, unless its
    *in_doubt* says otherwise. ``False`` in place of options records nothing of a tool.

    With *approvals*, a tool that requires approval makes the run wait for `surehold.approve` or
    `surehold.reject`; without, the agent returns its `DeferredToolRequests`. *models* and
    *event_stream_handler* are those of every durable engine of Pydantic AI.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Surehold",
        durable_unit_noun="recorded call",
        durable_container_noun="run",
        codec=JSON_CODEC,
        serialization_failure=_not_storable,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=METADATA,
        cancellation_error_types=(Signal,),
    )

    def __init__(
        self,
        *,
        model: CallOptions | None = None,
        tools: CallOptions | None = None,
        approvals: bool = True,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._rules = CallRules(model, tools)
        self._approvals = approvals
        self._operations: RecordedOperations | None = None

    def _bind_to_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> None:
        self._operations = RecordedOperations(self.name, self._rules)
        super()._bind_to_agent(agent)

    def get_durable_operation_backend(self) -> RecordedOperations:
        """The backend that records calls."""
        assert self._operations is not None
        return self._operations

    @property
    def in_durable_context(self) -> bool:
        """True inside a run that records calls."""
        return open_context() is not None

    def get_default_run_id(self) -> str | None:
        """The id of the agent's run: the run around it, and the agent's position there."""
        found = open_context()
        if found is None:
            return None
        run = found[1]
        made = recorded_value(self.name, lambda place: f"{run.run_id}:{place}")
        _agents_in(run)[made] = AgentRun.at(made)
        return made

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same id on every replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """The recorded start, from which the agent's time limit counts."""
        return now() if self.in_durable_context else None

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        """Execute the agent; its calls have keys of their own in the run."""
        found, agent = open_context(), self._agent
        if found is None or agent is None:
            return await handler()
        agents, run_id = _agents_in(found[1]), ctx.run_id or ""
        here = agents.get(run_id)
        if here is None:  # a run id of the user's own, which may come twice in a run
            here = agents[run_id] = AgentRun.at(recorded_value(self.name, lambda place: place))
        elif here.active:
            raise UsageError(
                f"agent {self.name!r} has run_id={run_id!r}, as another that runs meanwhile",
                hint="give agents that run at the same time different run ids, or none",
            )
        here.active = True
        try:
            with agent.parallel_tool_call_execution_mode("parallel_ordered_events"):
                return await handler()
        finally:
            del agents[run_id]

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask a person about the calls that require approval; the run waits."""
        found = open_context()
        if found is None or not (self._approvals and requests.approvals):
            return None
        here = _agents_in(found[1])[ctx.run_id or ""]
        keys = [here.key(ctx, "question", call.tool_call_id) for call in requests.approvals]
        asked = [
            asyncio.ensure_future(_ask(call, key, _function_of(ctx, call.tool_name)))
            for call, key in zip(requests.approvals, keys, strict=True)
        ]
        await asyncio.gather(*asked, return_exceptions=True)
        answers = [one.result() for one in asked]
        ids = [call.tool_call_id for call in requests.approvals]
        return requests.build_results(approvals=dict(zip(ids, answers, strict=True)))


def _agents_in(run: OpenRun) -> dict[str, AgentRun]:
    return AGENT_RUNS.setdefault(run, {})


def _function_of(ctx: RunContext[Any], name: str) -> Any:
    """The function of a tool; None for one of another kind, as of an MCP server."""
    known = (ctx.tool_manager.tools if ctx.tool_manager is not None else None) or {}
    tools = getattr(known[name].toolset, "tools", {}) if name in known else {}
    return getattr(tools.get(name), "function", None)


async def _ask(call: ToolCallPart, key: str, function: Any) -> ToolApproved | ToolDenied:
    said = await ask_approval(call.tool_name, call.args_as_dict(), function=function, key=key)
    if said.approved:
        return ToolApproved(override_args=said.arguments)
    return ToolDenied(said.reason) if said.reason else ToolDenied()
