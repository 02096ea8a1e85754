"""Participants of a fleet: models with a role, functions, and agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from surehold.agents.agent import Agent, Parent, usage_of
from surehold.agents.fleet.settings import ApprovalSettings
from surehold.agents.models import Message, Model, Reply, ask
from surehold.agents.tools import (
    Approval,
    Tool,
    ToolCalls,
    ToolLike,
    ask_approval,
    read_tool,
    text_of,
)
from surehold.core.values import Usage
from surehold.doors.resume import run_inside
from surehold.engine.runs.effects import effect
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import RunError, UsageError

Tell: TypeAlias = Callable[..., None]
"""Emits an event: its kind, then its facts by name."""

_TOOL_TURNS = 16
"""Number of turns with tools before a participant has to answer."""


class Role(msgspec.Struct, frozen=True):
    """The purpose of a participant, and the instructions for its model."""

    description: str
    instructions: str


ROLES = {
    "researcher": Role(
        "finds things out and reports them with their sources",
        "You are a researcher. Find out what you are asked, and report it briefly.",
    ),
    "coder": Role(
        "writes and explains code",
        "You are a programmer. Write the code that you are asked for, and say how it is used.",
    ),
    "analyst": Role(
        "draws conclusions from data and findings",
        "You are an analyst. Examine what you are given, and say what follows from it.",
    ),
}
"""The participants of a fleet that names none."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A participant's work in a round."""

    fleet: str
    """The fleet's name."""
    name: str
    """The participant's."""
    instruction: str
    messages: Sequence[Message]
    """Its earlier messages, what the others said since, and the instruction."""
    approvals: ApprovalSettings
    tell: Tell
    spend: Callable[[Usage], None]
    """Counts a model call at once, also if the round does not complete."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a participant's round."""

    text: str
    usages: tuple[Usage, ...] = ()
    """Usage of model calls that `Assignment.spend` did not count."""
    approvals: tuple[dict[str, Any], ...] = ()
    """Questions to people, and their answers."""


@runtime_checkable
class Participant(Protocol):
    """A member of the team; its work is part of the round's step.

    Calls that must not be repeated go through `surehold.effect`.
    """

    @property
    def description(self) -> str:
        """Its purpose, for the manager."""

    @property
    def remembers(self) -> bool:
        """True if it is shown its earlier rounds."""

    async def work(self, assignment: Assignment) -> Turn:
        """Do the work of one round."""


class FunctionParticipant:
    """A function of the instruction and, as a second parameter, the messages.

    It returns text or a `Reply`, which is recorded; killed before that, it is called again.
    """

    remembers = True

    def __init__(self, function: Callable[..., Any], description: str = "") -> None:
        self._function = function
        self._takes_messages = len(_positional(function)) > 1
        self.description = description or _first_line(function)

    async def work(self, assignment: Assignment) -> Turn:
        """Call the function."""
        args: tuple[Any, ...] = (assignment.instruction,)
        if self._takes_messages:
            args = (assignment.instruction, [*assignment.messages])

        async def call(*args: Any) -> dict[str, Any]:
            result = self._function(*args)
            if inspect.isawaitable(result):
                result = await result
            return _result(assignment.name, result)

        return await _recorded_turn(assignment.name, call, *args)


class ModelParticipant:
    """A model with a role and tools: functions, see `surehold.tool`.

    *operations* maps the name of a tool to the operation that it counts as for approvals. With
    *records* every model call is recorded before the next; without, an interrupted round asks
    again.

    >>> from surehold.testing.scripted import ScriptedModel
    >>> poet = ModelParticipant(ScriptedModel(["Kelp, kelp."]), description="writes verse")
    >>> poet.description
    'writes verse'
    """

    def __init__(
        self,
        model: Model,
        *,
        description: str = "",
        instructions: str = "",
        tools: Sequence[ToolLike] = (),
        operations: Mapping[str, str] | None = None,
        stream: bool = True,
        remembers: bool = True,
        records: bool = True,
    ) -> None:
        self.model = model
        self.description = description
        self.instructions = instructions
        self.tools = {tool.name: tool for tool in map(read_tool, tools)}
        self.operations = dict(operations or {})
        self.remembers = remembers
        self._stream = stream
        self._records = records

    async def work(self, assignment: Assignment) -> Turn:
        """Ask the model, call the tools it asks for, and repeat until it answers."""
        said: list[Message] = [*assignment.messages]
        if self.instructions:
            said.insert(0, {"role": "system", "content": self.instructions})
        calls = _ParticipantToolCalls(self, assignment)
        for _ in range(_TOOL_TURNS):
            reply = await self._ask(assignment, said, calls)
            assignment.spend(reply.usage)
            if not reply.tool_calls:
                return Turn(text=reply.text, approvals=tuple(calls.approvals))
            said += [reply.message, *await calls.answer_all(reply.tool_calls)]
        text = f"(stopped after {_TOOL_TURNS} turns with tools, without an answer)"
        return Turn(text=text, approvals=tuple(calls.approvals))

    async def _ask(
        self, assignment: Assignment, said: Sequence[Message], calls: _ParticipantToolCalls
    ) -> Reply:
        name = assignment.name
        specs = [tool.spec for tool in self.tools.values()]
        on_text = None
        if self._stream:
            on_text = lambda text: assignment.tell("model.text", speaker=name, text=text)  # noqa: E731
        if self._records or calls.bind:
            return await ask(self.model, said, name=name, tools=specs, on_text=on_text)
        return await self.model.respond(said, tools=specs, on_text=on_text)


class _ParticipantToolCalls(ToolCalls):
    """Calls the tools of a participant, by the fleet's rules for approvals."""

    def __init__(self, participant: ModelParticipant, assignment: Assignment) -> None:
        super().__init__(participant.tools)
        self._operations = participant.operations
        self._assignment = assignment
        self.approvals: list[dict[str, Any]] = []

    @property
    def bind(self) -> bool:
        """True if the model must not be asked again: a call was approved or perhaps made."""
        return any(
            self.needs_approval(tool) or not (tool.read_only or tool.idempotent)
            for tool in self._tools.values()
        )

    def needs_approval(self, tool: Tool) -> bool:
        operation = self._operations.get(tool.name, tool.name)
        return tool.approval or self._assignment.approvals.needs(tool.name, operation)

    async def approve(self, tool: Tool, arguments: Mapping[str, Any], index: int) -> Approval:
        name = self._assignment.name
        said = await ask_person(
            self._assignment.approvals,
            operation_type=self._operations.get(tool.name, tool.name),
            agent_name=name,
            operation=tool.name,
            details=arguments,
            tool=tool,
        )
        told = {"agent_name": name, "operation": tool.name, **msgspec.to_builtins(said)}
        self.approvals.append(told)
        return said

    async def before_call(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        speaker = self._assignment.name
        self._assignment.tell("fleet.tool", speaker=speaker, tool=tool.name, arguments=arguments)

    def effect_name(self, tool: Tool) -> str:
        return f"tool {tool.name}"


async def ask_person(
    settings: ApprovalSettings,
    *,
    operation_type: str,
    agent_name: str,
    operation: str,
    details: Mapping[str, Any],
    tool: Tool | None = None,
) -> Approval:
    """Make the run wait until a person approves, for the time in *settings*."""
    asked_at = await effect("asked", _now, in_doubt="retry")
    seconds = settings.approval_timeout_seconds
    return await ask_approval(
        operation,
        details,
        tool=tool,
        timeout=seconds if settings.auto_reject_on_timeout else None,
        operation_type=operation_type,
        agent_name=agent_name,
        asked_at=asked_at,
        timeout_seconds=seconds,
        reject_when_expired=settings.auto_reject_on_timeout,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat()


class AgentParticipant:
    """An agent that takes part; each of its rounds is a separate run.

    That run is linked to the fleet's and saved beside it: killed during a round, the agent
    continues with its own next cycle.
    """

    remembers = True

    def __init__(self, agent: Agent, description: str = "") -> None:
        self.agent = agent
        self.description = description or agent.instructions or agent.agent_id

    async def work(self, assignment: Assignment) -> Turn:
        """Run the agent, or continue its run."""
        here = CURRENT_STEP.get()
        assert here is not None and here.run is not None
        fleet_run = here.run.run_id

        async def call(task: str, idempotency_key: str) -> dict[str, Any]:
            parent = Parent(assignment.fleet, fleet_run, {})
            run_id = run_inside(fleet_run, idempotency_key)
            result = await self.agent.run_within(parent, task, run_id)
            if result.status != "completed":
                why = f": {result.error}" if result.error else ""
                raise RunError(f"agent {self.agent.agent_id} ended with {result.status}{why}")
            used = usage_of(self.agent.state)
            return {"text": text_of(self.agent.raw_answer), "usages": [used.to_dict()]}

        return await _recorded_turn(assignment.name, call, _task(assignment))


def _task(assignment: Assignment) -> str:
    """The instruction, preceded by the participant's messages of earlier rounds."""
    *earlier, now = assignment.messages
    if not earlier:
        return str(now["content"])
    said = "\n\n".join(
        f"{'You said' if one['role'] == 'assistant' else 'You were told'}: {one['content']}"
        for one in earlier
    )
    return f"Earlier:\n\n{said}\n\nNow:\n\n{now['content']}"


async def _recorded_turn(name: str, call: Callable[..., Any], *args: Any) -> Turn:
    """The turn that *call* makes; killed before it is recorded, it is called again."""
    done: dict[str, Any] = await effect(name, call, *args, in_doubt="retry", usage=_spent)
    return Turn(text=done["text"], usages=_usages(done))


def _result(name: str, result: object) -> dict[str, Any]:
    if isinstance(result, Reply):
        return {"text": result.text, "usages": [result.usage.to_dict()]}
    if isinstance(result, str):
        return {"text": result, "usages": []}
    raise UsageError(
        f"participant {name!r} returned {type(result).__name__}", hint="return text, or a Reply"
    )


def _usages(done: Mapping[str, Any]) -> tuple[Usage, ...]:
    """Usage of the recorded outcome of a participant's effect."""
    return tuple(Usage.read(one) for one in done["usages"])


def _spent(done: Mapping[str, Any]) -> dict[str, Any]:
    whole = sum(_usages(done), Usage.none())
    dollars = whole.cost_usd or 0.0
    return {"tokens": whole.tokens, "dollars": dollars, "output": whole.output_tokens}


def participant_of(name: Any, given: object) -> Participant:
    """Make a participant of *given*: a participant, a model, an agent, or a function."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"a participant is named {name!r}", hint="give each a name, a text")
    if isinstance(given, Participant):
        return given
    if isinstance(given, Agent):
        return AgentParticipant(given)
    if isinstance(given, Model):
        role = ROLES.get(name, Role(name, ""))
        return ModelParticipant(given, description=role.description, instructions=role.instructions)
    if callable(given) and not isinstance(given, type):
        if not 1 <= len(_positional(given)) <= 2:
            raise UsageError(
                f"participant {name!r} takes {len(_positional(given))} arguments",
                hint="a function of the instruction, or of the instruction and the messages",
            )
        return FunctionParticipant(given, _first_line(given) or name)
    raise UsageError(
        f"participant {name!r} is {type(given).__name__}",
        hint="give an async function of the instruction, a model, an agent or a ModelParticipant",
    )


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one for one in parameters if one.kind in kinds]


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
