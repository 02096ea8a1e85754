"""Durable agents of the OpenAI Agents SDK.

```python
runner = SureholdRunner()  # in place of Runner
result = await runner.run(agent, "Refund order 3.", session=SureholdSession("customer-7"))
```
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any, Unpack, cast

from agents import Agent, RunConfig, Runner, RunResult, RunResultStreaming, RunState
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.models.interface import Model
from agents.run import (
    RunOptions,
    get_default_agent_runner,
    set_default_agent_runner,
)
from agents.stream_events import StreamEvent

from surehold.agents.tools import ask_approval
from surehold.core.context import during
from surehold.engine.runs.effects import hand_on
from surehold.engine.runs.positions import recorded_value
from surehold.errors import UsageError
from surehold.integrations.calls import CallOptions, open_context
from surehold.integrations.openai_agents.copies import Copies, original_of
from surehold.integrations.openai_agents.execution import (
    HERE,
    AgentExecution,
    Here,
    PerTool,
    RunnerRules,
)
from surehold.integrations.openai_agents.models import RecordedModel, RecordedProvider
from surehold.integrations.openai_agents.sessions import recorded_session

Input = str | list[TResponseInputItem] | RunState[Any]

_STARTING: ContextVar[Agent[Any] | None] = ContextVar("surehold_starting_agent", default=None)
"""The agent that is handed to the SDK's own runner now."""


class SureholdRunner:
    """Runs agents as `agents.Runner` does; inside a run, the run records their calls.

    A resumed run returns the recorded responses and results, and continues inside the turn in
    which it was killed: with handoffs, guardrails, agents as tools, streamed or not. Outside a run
    an agent runs as it would with `agents.Runner`.

    *model* and *tools* are options for the calls of models and of all tools, *per_tool* those of
    single tools, by name; False in place of options records nothing of a tool. A model is called
    again if the process died during the call; about a tool a person is asked, unless its
    *in_doubt* says otherwise. Agents as tools have no options: their calls are recorded one by
    one.

    With *approvals*, a tool that needs approval makes the run wait for `surehold.approve` or
    `surehold.reject`; without, the result has `interruptions`, as without Surehold. A session must
    be a `SureholdSession`: others would be written again by every replay.
    """

    def __init__(
        self,
        *,
        model: CallOptions | None = None,
        tools: CallOptions | None = None,
        per_tool: PerTool | None = None,
        approvals: bool = True,
    ) -> None:
        self._rules = RunnerRules(model, tools, per_tool)
        self._approvals = approvals

    async def run(
        self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]
    ) -> RunResult:
        """Run an agent; arguments and result are those of `agents.Runner.run`."""
        if open_context() is None:
            return await Runner.run(starting_agent, input, **options)
        began = self._begin(starting_agent, options)
        try:
            with during(HERE, began.here):
                result = await began.run(input)
                while (state := await began.answered(result)) is not None:
                    result = await began.run(state)
            return result
        finally:
            await began.close()

    def run_streamed(
        self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]
    ) -> RunResultStreaming:
        """Run an agent and stream its events, as `agents.Runner.run_streamed` does.

        Events come as they happen. A turn that is replayed streams its items, and not again the
        pieces that the model had sent.
        """
        if open_context() is None:
            return Runner.run_streamed(starting_agent, input, **options)
        began = self._begin(starting_agent, options)
        with during(HERE, began.here):
            return cast("RunResultStreaming", _Stream(began, began.stream(input)))

    def run_sync(
        self, starting_agent: Agent[Any], input: Input, **options: Unpack[RunOptions[Any]]
    ) -> RunResult:
        """Run an agent outside a run, as `agents.Runner.run_sync` does."""
        if open_context() is not None:
            raise UsageError(
                f"run_sync of agent {starting_agent.name!r} is called inside a run",
                hint="make the workflow or the run async, and await runner.run(...)",
            )
        return Runner.run_sync(starting_agent, input, **options)

    def _begin(self, agent: Agent[Any], options: RunOptions[Any]) -> _Began:
        found = open_context()
        assert found is not None
        context, run = found
        agent = original_of(agent)
        if context.awaited is False:
            raise UsageError(
                f"agent {agent.name!r} is async, and the run around it is not",
                hint="make the workflow or the run async, and await runner.run(...)",
            )
        above = HERE.get()
        if above is not None and above.run is run:
            position = above.next(agent.name)
        else:
            place = recorded_value(agent.name, lambda place: place)
            position = place.rpartition("@")[2].replace("/", ".")
        execution = AgentExecution(Here(self, run, position), self._rules, agent.name)
        return _Began(execution, agent, options, self._approvals)


class _Began:
    """An execution that has begun, with the SDK's own runner beneath."""

    def __init__(
        self, execution: AgentExecution, agent: Agent[Any], options: RunOptions[Any], asks: bool
    ) -> None:
        self.here = execution.here
        self._execution = execution
        self._asks = asks
        self._copies = Copies(execution)
        self._agent = self._copies.agent(agent)
        given: Any = options.get("run_config")
        config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
        self._provider = RecordedProvider(config.model_provider, execution)
        self._owns_provider = given is None
        model = config.model
        if isinstance(model, Model):
            model = RecordedModel(model, execution)
        self._options = RunOptions(**options)
        self._options["run_config"] = dataclasses.replace(
            config, model=model, model_provider=self._provider
        )
        self._options["session"] = recorded_session(options.get("session"), execution)

    async def run(self, input: Input) -> RunResult:
        """Run to an end or an interruption."""
        with during(_STARTING, self._agent):
            runner = _nested_runner()
            try:
                return await runner.run(self._agent, self._given(input), **self._options)
            except Exception as error:
                hand_on(error)  # the SDK wraps what a tool has raised
                raise

    def stream(self, input: Input) -> RunResultStreaming:
        """The same, streamed."""
        with during(_STARTING, self._agent):
            runner = _nested_runner()
            return runner.run_streamed(self._agent, self._given(input), **self._options)

    def _given(self, input: Input) -> Input:
        if isinstance(input, RunState) and input._current_agent is not None:
            input._current_agent = self._copies.agent(input._current_agent)
        return input

    async def answered(self, result: RunResult | RunResultStreaming) -> RunState[Any] | None:
        """The state with answers to all interruptions; None if nobody is to be asked."""
        if not (self._asks and result.interruptions):
            return None
        items = list(result.interruptions)
        asked = [asyncio.ensure_future(self._ask(item)) for item in items]
        await asyncio.gather(*asked, return_exceptions=True)
        answers = [one.result() for one in asked]
        state: RunState[Any] = result.to_state()
        for item, reason in zip(items, answers, strict=True):
            if reason is None:
                state.approve(item)
            else:
                state.reject(item, rejection_message=reason or None)
        return state

    async def _ask(self, item: ToolApprovalItem) -> str | None:
        """None if a person approves the call, else the reason why not."""
        name = item.tool_name or "tool"
        try:
            arguments = json.loads(item.arguments or "{}")
        except ValueError:
            arguments = item.arguments
        if not isinstance(arguments, dict):
            arguments = {"input": arguments}
        key = self._execution.key("question", name, item.call_id or "")
        said = await ask_approval(name, arguments, function=_function_of(item), key=key)
        if not said.approved:
            return said.reason or ""
        if said.arguments is not None and dict(said.arguments) != arguments:
            # The SDK executes what the model has called; it may call what was approved.
            return f"Approved only with these arguments: {json.dumps(dict(said.arguments))}"
        return None

    async def close(self) -> None:
        """Close the provider of models that was made for this execution."""
        if self._owns_provider:
            await self._provider.aclose()


def _function_of(item: ToolApprovalItem) -> Any:
    """The function tool that waits for an approval; None for a tool of another kind."""
    tools = original_of(item.agent).tools
    return next((one for one in tools if one.name == item.tool_name), None)


class _Stream:
    """A `RunResultStreaming` that continues when a person has answered."""

    def __init__(self, began: _Began, result: RunResultStreaming) -> None:
        self._began = began
        self._result = result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._result, name)

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """The events up to the end, over all interruptions that a person has answered."""
        began = self._began
        try:
            while True:
                try:
                    async for event in self._result.stream_events():
                        yield event
                except Exception as error:
                    hand_on(error)
                    raise
                began.here.run.leaving.check_body()
                state = await began.answered(self._result)
                if state is None:
                    return
                with during(HERE, began.here):
                    self._result = began.stream(state)
        finally:
            await began.close()


class _NestedRunner:
    """The SDK's default runner; agents inside an execution go to ours."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        runner = self._runner_of(starting_agent)
        with during(_STARTING, None):
            return cast("RunResult", await runner.run(starting_agent, input, **options))

    def run_streamed(
        self, starting_agent: Agent[Any], input: Any, **options: Any
    ) -> RunResultStreaming:
        runner = self._runner_of(starting_agent)
        with during(_STARTING, None):
            return cast("RunResultStreaming", runner.run_streamed(starting_agent, input, **options))

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        runner = self._runner_of(starting_agent)
        return cast("RunResult", runner.run_sync(starting_agent, input, **options))

    def _runner_of(self, agent: Agent[Any]) -> Any:
        here, found = HERE.get(), open_context()
        if agent is _STARTING.get() or here is None or found is None or found[1] is not here.run:
            return self._plain
        return here.runner


def _nested_runner() -> _NestedRunner:
    """The default runner, which an agent used as a tool runs with, too."""
    found: Any = get_default_agent_runner()
    if not isinstance(found, _NestedRunner):
        found = _NestedRunner(found)
        set_default_agent_runner(found)
    return cast("_NestedRunner", found)
