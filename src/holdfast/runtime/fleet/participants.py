"""Who takes part in a fleet: models with a role, functions, and agents."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from holdfast.checkpoint.effects import TO_A_MODEL, effect, failure_here
from holdfast.errors import InDoubtError, UsageError
from holdfast.runtime.fleet.settings import ApprovalSettings
from holdfast.runtime.models import Message, Model, Reply, Usage, ask
from holdfast.runtime.tools import Tool, ToolLike, answer_tree, ask_person, read_tool, text_of

__all__ = [
    "ROLES",
    "Assignment",
    "FunctionParticipant",
    "ModelParticipant",
    "Participant",
    "Role",
    "Tell",
    "Turn",
    "participant_of",
]

Tell: TypeAlias = Callable[..., None]
"""Tells those who watch: the kind of event, then its facts by name."""

_TOOL_TURNS = 16
"""So often a participant may call tools before it has to answer."""


class Role(msgspec.Struct, frozen=True):
    """What a participant is for, and what its model is told about that."""

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
    """What a participant is given to do in a round."""

    fleet: str
    """The fleet's name."""
    name: str
    """The participant's."""
    instruction: str
    messages: Sequence[Message]
    """What it was told and said before, what the others said since, and the instruction."""
    approvals: ApprovalSettings
    tell: Tell


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What a participant did in a round."""

    text: str
    usages: tuple[Usage, ...] = ()
    """One for each model call."""
    approvals: tuple[dict[str, Any], ...] = ()
    """What people were asked, and said."""


@runtime_checkable
class Participant(Protocol):
    """One who takes part. What it does is part of the round's step: what it must not do twice goes
    through `holdfast.effect`."""

    @property
    def description(self) -> str:
        """What it is for, as the manager is told."""

    @property
    def remembers(self) -> bool:
        """Whether it is shown its earlier rounds."""

    async def work(self, assignment: Assignment) -> Turn:
        """Do what it is told."""


class FunctionParticipant:
    """A function of the instruction or, with two parameters, of the instruction and the messages.

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

        name = assignment.name
        done: dict[str, Any] = await effect(name, call, *args, in_doubt="retry", usage=_spent)
        return Turn(text=done["text"], usages=tuple(Usage(**one) for one in done["usages"]))


class ModelParticipant:
    """A model with a role and, if it has any, tools: functions, see `holdfast.runtime.tools.tool`.

    *operations* says, by the name of a tool, what it counts as where operations need approval.
    With *records* every model call is recorded before the next; without, a round that is
    interrupted asks again.

    >>> from holdfast.testing.scripted import ScriptedModel
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
        self._operations = dict(operations or {})
        self.remembers = remembers
        self._stream = stream
        self._records = records

    async def work(self, assignment: Assignment) -> Turn:
        """Ask the model, call the tools it wants, and so on until it answers."""
        said: list[Message] = [*assignment.messages]
        if self.instructions:
            said.insert(0, {"role": "system", "content": self.instructions})
        usages: list[Usage] = []
        approvals: list[dict[str, Any]] = []
        for _ in range(_TOOL_TURNS):
            reply = await self._ask(assignment, said)
            usages.append(reply.usage)
            if not reply.tool_calls:
                return Turn(text=reply.text, usages=tuple(usages), approvals=tuple(approvals))
            said.append(_wish(reply))
            for call in reply.tool_calls:
                result, approval = await self._call(assignment, call.name, dict(call.arguments))
                if approval is not None:
                    approvals.append(approval)
                answer = {"role": "tool", "content": result}
                said.append({**answer, "tool_call_id": call.id, "name": call.name})
        text = f"(stopped after {_TOOL_TURNS} turns with tools, without an answer)"
        return Turn(text=text, usages=tuple(usages), approvals=tuple(approvals))

    async def _ask(self, assignment: Assignment, said: Sequence[Message]) -> Reply:
        name = assignment.name
        specs = [tool.spec for tool in self.tools.values()]
        on_text = None
        if self._stream:
            on_text = lambda text: assignment.tell("fleet.text", speaker=name, text=text)  # noqa: E731
        if self._records or self._binds(assignment):
            return await ask(self.model, said, name=name, tools=specs, on_text=on_text)
        return await self.model.respond(said, tools=specs, on_text=on_text)

    def _needs_approval(self, assignment: Assignment, tool: Tool) -> bool:
        operation = self._operations.get(tool.name, tool.name)
        return tool.approval or assignment.approvals.needs(tool.name, operation)

    def _binds(self, assignment: Assignment) -> bool:
        """Whether the model may not be asked anew: what it wanted was approved, or may be done."""
        return any(
            self._needs_approval(assignment, tool) or not (tool.read_only or tool.idempotent)
            for tool in self.tools.values()
        )

    async def _call(
        self, assignment: Assignment, name: str, arguments: dict[str, Any]
    ) -> tuple[str, dict[str, Any] | None]:
        """What the tool said, and what people said about it."""
        tool = self.tools.get(name)
        if tool is None:
            return f"error: there is no tool {name!r}, only {', '.join(self.tools)}", None
        noted = None
        operation = self._operations.get(name, name)
        if self._needs_approval(assignment, tool):
            said = await ask_person(
                assignment.approvals,
                operation_type=operation,
                agent_name=assignment.name,
                operation=name,
                details=arguments,
            )
            noted = {"agent_name": assignment.name, "operation": name, **answer_tree(said)}
            if not said.approved:
                return f"not done, it was rejected: {said.reason or 'no reason given'}", noted
            if said.arguments is not None:
                arguments = said.arguments
        assignment.tell("fleet.tool", speaker=assignment.name, tool=name, arguments=arguments)
        return await _called(tool, arguments), noted


async def _called(tool: Tool, arguments: dict[str, Any]) -> str:
    """What the tool said, as an effect of the step; what it raises is told to the model."""

    async def call(arguments: dict[str, Any], idempotency_key: str) -> str:
        try:
            return text_of(await tool.run(tool.read(arguments), idempotency_key))
        except InDoubtError:
            raise
        except Exception as error:
            return f"error: {failure_here(error, TO_A_MODEL)}"

    return await effect(f"tool {tool.name}", call, arguments, in_doubt=tool.in_doubt)


def _wish(reply: Reply) -> Message:
    calls = [
        {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
        for call in reply.tool_calls
    ]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls}


def _result(name: str, result: object) -> dict[str, Any]:
    if isinstance(result, Reply):
        return {"text": result.text, "usages": [dataclasses.asdict(result.usage)]}
    if isinstance(result, str):
        return {"text": result, "usages": []}
    raise UsageError(
        f"participant {name!r} returned a {type(result).__name__}", hint="return text, or a Reply"
    )


def _spent(done: Mapping[str, Any]) -> dict[str, float]:
    usages = [Usage(**one) for one in done["usages"]]
    tokens = sum(usage.tokens for usage in usages)
    return {"tokens": tokens, "dollars": sum(usage.cost_usd or 0.0 for usage in usages)}


def participant_of(name: str, given: object) -> Participant:
    """What takes part for *given*: a participant, a model, an agent, or a function."""
    from holdfast.runtime.agent import BaseAutonomousAgent
    from holdfast.runtime.fleet.agent_participant import AgentParticipant

    if isinstance(given, Participant):
        return given
    if isinstance(given, BaseAutonomousAgent):
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
        f"participant {name!r} is a {type(given).__name__}",
        hint="give an async function of the instruction, a model, an agent or a ModelParticipant",
    )


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [one for one in parameters if one.kind in kinds]


def _first_line(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").partition("\n")[0]
