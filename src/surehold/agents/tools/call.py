"""Tool calls of a model: validated, approved, recorded, not repeated on a resume."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from surehold.agents.models import ToolCall
from surehold.agents.tools.approval import Approval, ask_approval
from surehold.agents.tools.definition import Tool, text_of
from surehold.core.policy import OF_THE_RUN, RetryPolicy
from surehold.core.values import encode, register_type
from surehold.doors.resume import TOOL_FAILED_NAME
from surehold.engine.runs.effects import TO_A_MODEL, CallPolicy, effect_by, failure_here
from surehold.errors import EncodeError, RunError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class ToolFailure:
    """Outcome of a tool that failed, recorded so that the tool is not called again."""

    error: str


register_type(ToolFailure, TOOL_FAILED_NAME)


class _Passing(ToolFailure):
    """A failure that another attempt may avoid; the journal holds a `ToolFailure`."""


class _AttemptFailed(Exception):
    def __init__(self, failure: ToolFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


def _last(error: Exception) -> Any:
    """The outcome of a tool after its last attempt, if the tool itself failed."""
    if isinstance(error, _AttemptFailed):
        return ToolFailure(error.failure.error)
    if isinstance(error, TimeoutError):
        return ToolFailure(failure_here(error, TO_A_MODEL))
    return NotImplemented


class ToolCalls:
    """Calls the tools that a model asks for; agents and participants override parts."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools

    async def answer_all(self, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
        """Call the tools of one reply in order; return the messages for the model.

        Consecutive calls of read-only tools that need no approval run in parallel.
        """
        texts: list[str] = []
        numbered = enumerate(calls)
        for parallel, group in groupby(numbered, lambda one: self._may_run_beside(one[1])):
            if parallel:
                self.begin_together()
                done = await _together([self._outcome(call, index) for index, call in group])
                texts += [self._told(one) for one in done]
                self.end_together()
            else:
                texts += [self._told(await self._outcome(call, index)) for index, call in group]
        return [call.answered(text) for call, text in zip(calls, texts, strict=True)]

    def _told(self, done: str | tuple[Tool, Any]) -> str:
        return done if isinstance(done, str) else self.text(*done)

    def _may_run_beside(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        if tool is None or tool.agent is not None or tool.checkpoint_before:
            return False
        return tool.read_only and not self.needs_approval(tool)

    async def _outcome(self, call: ToolCall, index: int) -> str | tuple[Tool, Any]:
        """Call one tool, the *index*-th of a reply; return its outcome or why not."""
        tool = self._tools.get(call.name)
        if tool is None:
            there = ", ".join(self._tools) or "none"
            return f"error: there is no tool {call.name!r}; there are: {there}"
        arguments = dict(call.arguments)
        try:
            tool.read(arguments)
        except UsageError as error:
            return f"error: {error}"
        if self.needs_approval(tool):
            said = await self.approve(tool, arguments, index)
            if not said.approved:
                return f"refused: {said.reason}" if said.reason else "refused by a person"
            arguments = arguments if said.arguments is None else said.arguments
        await self.before_call(tool, arguments)
        return tool, await self._recorded(tool, arguments)

    async def _recorded(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        async def call(arguments: dict[str, Any], idempotency_key: str) -> Any:
            outcome = await self.perform(tool, arguments, idempotency_key)
            if isinstance(outcome, _Passing):
                raise _AttemptFailed(outcome)
            return outcome

        policy = CallPolicy(
            name=self.effect_name(tool),
            in_doubt=tool.in_doubt,
            record_arguments=tool.record_arguments,
            attempts=tool.policy,
            settle=_last,
            kind="tool",
        )
        try:
            return await effect_by(policy, call, arguments)
        except RunError as error:
            if isinstance(error, OF_THE_RUN):
                raise
            return ToolFailure(error.message)

    # What a host of tools may add

    def needs_approval(self, tool: Tool) -> bool:
        """Return whether a person must approve each call of *tool*."""
        return tool.approval

    async def approve(self, tool: Tool, arguments: Mapping[str, Any], index: int) -> Approval:
        """Ask a person; return the answer."""
        return await ask_approval(tool.name, arguments, tool=tool, key=f"{tool.name}.{index}")

    async def before_call(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Do what must precede a call, recorded or not."""

    def begin_together(self) -> None:
        """Prepare for calls that run in parallel."""

    def end_together(self) -> None:
        """End what `begin_together` began, their outcomes being told."""

    def effect_name(self, tool: Tool) -> str:
        """Name of the effect that records a call of *tool*."""
        return tool.name

    async def perform(self, tool: Tool, arguments: dict[str, Any], key: str) -> Any:
        """Call *tool*, which the journal shows was not called; return the outcome."""
        try:
            return storable(await tool.run(tool.read(arguments), key))
        except OF_THE_RUN:
            raise
        except Exception as error:
            return tool_failure(error, tool.policy)

    def text(self, tool: Tool, outcome: Any) -> str:
        """The text that tells the model of a new or a recorded outcome."""
        return f"error: {outcome.error}" if isinstance(outcome, ToolFailure) else text_of(outcome)


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the calls in parallel, all to their end; raise the first exception there is."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def tool_failure(error: Exception, policy: RetryPolicy) -> ToolFailure:
    """The outcome of a tool that raised *error*."""
    kind = _Passing if policy.retries_after(error) else ToolFailure
    return kind(failure_here(error, TO_A_MODEL))


def storable(result: Any) -> Any:
    """*result* or, if the journal cannot hold it, its text for a model."""
    try:
        encode(result)
    except EncodeError:
        return text_of(result)
    return result
