"""The calls of a Pydantic AI agent, recorded in the run around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    OperationConfigRole,
    ResultCodec,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.tools import RunContext

from surehold.agents.models import cost_of
from surehold.core.context import during
from surehold.core.policy import read_policy
from surehold.core.values import Usage
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import Called, CallPolicy, EffectCall, perform
from surehold.errors import DecodeError, UsageError
from surehold.integrations.calls import KEY, CallOptions, checked_options, open_context

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")

METADATA = "surehold"
"""The key of a tool's metadata that holds its `CallOptions`."""

_params: ContextVar[Any] = ContextVar("surehold_pydantic_ai_params", default=None)
"""The parameters of the operation that is begun here."""


@dataclass
class AgentRun:
    """One execution of an agent inside a run."""

    position: str
    """The agent's position in the run; the keys of its calls begin with it."""
    active: bool = False
    seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def at(cls, place: str) -> Self:
        """An execution that begins at *place*, ``support@3``."""
        return cls(place.rpartition("@")[2].replace("/", "."))

    def key(self, context: RunContext[Any], name: str, tool_call_id: str | None = None) -> str:
        """The key of the next call of that name: the agent, its step, the tool call."""
        tool_call_id = tool_call_id or context.tool_call_id
        key = f"{self.position}.{context.run_step}"
        if tool_call_id:
            key += f".{tool_call_id}"
        self.seen[f"{name} {key}"] += 1
        count = self.seen[f"{name} {key}"]
        return key if count == 1 else f"{key}.{count}"


AGENT_RUNS: WeakKeyDictionary[OpenRun, dict[str, AgentRun]] = WeakKeyDictionary()
"""The agents that run in each run of this process, by their own run ids."""


class CallRules:
    """The options of each kind of call, checked when the agent is made."""

    def __init__(self, model: CallOptions | None, tools: CallOptions | None) -> None:
        step: CallOptions = {"in_doubt": "retry"}
        self._of_role: Mapping[str, CallOptions] = {
            "model": step | checked_options("model", model),
            "tool": {"in_doubt": "ask"} | checked_options("tools", tools),
        }
        self._others = step

    def base(self, role: OperationConfigRole, *, operation_id: DurableOperationId) -> CallOptions:
        """The options of an operation that is not a tool's own call."""
        if role == "tool" and not isinstance(operation_id, ToolsetCallToolId):
            return self._others
        return self._of_role.get(role, self._others)

    def for_tool(
        self,
        role: OperationConfigRole,
        *,
        operation_id: DurableOperationId,
        tool: object | None,
        tool_name: str,
    ) -> CallOptions | Literal[False]:
        """The options of all tools, and over them those in the tool's metadata.

        A tool that its MCP server marks as read-only is called again without a question.
        """
        base = self.base(role, operation_id=operation_id)
        metadata = getattr(getattr(tool, "tool_def", None), "metadata", None) or {}
        own = metadata.get(METADATA)
        if own is False:
            return False
        if own is not None and not isinstance(own, Mapping):
            raise UsageError(
                f"the metadata {METADATA!r} of tool {tool_name!r} is {own!r}",
                hint='give options, {"in_doubt": "retry"}, or False to record nothing',
            )
        if not isinstance(operation_id, ToolsetCallToolId):
            return base
        if (metadata.get("annotations") or {}).get("readOnlyHint") is True:
            base = base | self._others
        return base | checked_options(f"tool {tool_name!r}", cast("CallOptions | None", own))


class RecordedOperations(JournalCallableOperationBackend[CallOptions]):
    """Makes each operation of an agent a recorded call of the run."""

    def __init__(self, agent_name: str, rules: CallRules) -> None:
        super().__init__(agent_name=agent_name, config=rules)
        self._agent_name = agent_name

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """Bind *operation*; `execute` finds the parameters of its call."""
        codec = _RecordedResult(operation.result_codec, operation.operation_id)
        return _BoundCall(super().bind(replace(operation, result_codec=codec)))

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: CallOptions,
    ) -> object:
        """Make one call, or return what the run has recorded of it."""
        found = open_context()
        if found is None:
            return await body()
        context, run = found
        params = _params.get()
        called = _name_of(operation_id, params, self._agent_name) or name
        if context.awaited is False:
            raise UsageError(
                f"{called} of agent {self._agent_name!r} is async, and the run around it is not",
                hint="make the workflow async and await agent.run(...), in place of run_sync",
            )
        policy = CallPolicy(
            name=called,
            in_doubt=config.get("in_doubt") or "retry",
            probe=config.get("probe"),
            usage=_spent if isinstance(operation_id, ModelRequestId) else None,
            attempts=read_policy(config),
            read=_as_payload if isinstance(operation_id, ToolsetCallToolId) else None,
            kind="tool" if isinstance(operation_id, ToolsetCallToolId) else "effect",
        )
        # The arguments of a tool identify its call; a model's messages hold the time of the replay.
        arguments = getattr(params, "tool_args", None)

        async def call(arguments: object, *, idempotency_key: str) -> object:
            with during(KEY, idempotency_key):
                payload = await body()
            return payload if policy.read is None else _as_result(payload)

        key = _call_key(run, params, called)
        return await perform(EffectCall(context, run, policy), key, Called(call, (arguments,), {}))


class _BoundCall(BoundDurableOperation[ParamsT, WireT, ResultT]):
    def __init__(self, bound: BoundDurableOperation[ParamsT, WireT, ResultT]) -> None:
        self._bound = bound

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        return self._bound.operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        with during(_params, params):
            return await self._bound(params, config=config)


class _RecordedResult(ResultCodec[ResultT]):
    """A codec whose failure to read is no `ValidationError`: a model would answer."""

    def __init__(self, codec: ResultCodec[ResultT], operation_id: DurableOperationId) -> None:
        self._codec = codec
        self._id = operation_id

    def dump(self, value: ResultT) -> object:
        return self._codec.dump(value)

    def load(self, payload: object) -> ResultT:
        try:
            return self._codec.load(payload)
        except (ValueError, TypeError, AssertionError) as error:
            raise DecodeError(
                f"the recorded outcome of {self._id} does not fit this version of pydantic-ai",
                hint="let runs that began earlier finish with the version that recorded them",
            ) from error


def _call_key(run: OpenRun, params: Any, name: str) -> str | None:
    """The key of a call, which does not depend on what runs beside it."""
    context = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    agents = AGENT_RUNS.get(run, {})
    agent = agents.get(getattr(context, "run_id", None) or "")
    return None if context is None or agent is None else agent.key(context, name)


def _name_of(id: DurableOperationId, params: Any, agent: str) -> str:
    """The name under which a call is recorded; later versions must find the same."""
    match id:
        case ToolsetCallToolId():
            return str(params.name)
        case ToolsetValidateToolArgumentsId():
            return f"{params.name}.validate"
        case ModelRequestId():
            return f"{agent}.model"
        case ModelCompactMessagesId():
            return f"{agent}.compact"
        case ModelCancelSuspendedResponseId():
            return f"{agent}.cancel"
        case EventStreamHandlerId():
            return f"{agent}.event"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"{agent}.{toolset}.tools"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"{agent}.{toolset}.instructions"
        case CapabilityOperationId(capability_id=capability, operation=operation):
            return f"{agent}.{capability}.{operation}"
        case _:  # the framework adds kinds of operations in minor releases
            return ""  # type: ignore[unreachable]


def _as_result(payload: Any) -> object:
    """The result in a tool's *payload*, where the framework's words are not needed.

    So a person who answers for a tool in doubt says what it returned.
    """
    if not isinstance(payload, Mapping) or {*payload} != {"kind", "result"}:
        return payload
    result = payload["result"]
    plain = payload["kind"] == "tool_return" and not (
        isinstance(result, Mapping) and "kind" in result
    )
    return result if plain else payload


def _as_payload(result: Any) -> object:
    """The payload for the framework; undoes `_as_result`."""
    if isinstance(result, Mapping) and "kind" in result:
        return result
    return {"kind": "tool_return", "result": result}


def _spent(response: Any) -> Mapping[str, float]:
    """The tokens and dollars of a model's response, in its JSON form."""
    used = response.get("usage") if isinstance(response, Mapping) else None
    if not isinstance(used, Mapping):
        return {}
    tokens = Usage(used.get("input_tokens") or 0, used.get("output_tokens") or 0)
    provider, model = response.get("provider_name") or "", response.get("model_name") or ""
    dollars = cost_of(tokens, provider, model)
    whole: dict[str, Any] = {
        "tokens": tokens.input_tokens + tokens.output_tokens,
        "dollars": dollars or 0.0,
    }
    return {**whole, "model": model, "output": tokens.output_tokens}
