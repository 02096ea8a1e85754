"""One execution of an agent inside a run, and its recorded calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from surehold.core.context import during
from surehold.core.policy import read_policy
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import Called, CallPolicy, EffectCall, perform
from surehold.integrations.calls import KEY, CallOptions, checked_options, open_context

if TYPE_CHECKING:
    from surehold.integrations.openai_agents.runner import SureholdRunner

PerTool = Mapping[str, CallOptions | Literal[False]]


class RunnerRules:
    """The options of each kind of call, checked when the runner is made."""

    def __init__(
        self, model: CallOptions | None, tools: CallOptions | None, per_tool: PerTool | None
    ) -> None:
        step: CallOptions = {"in_doubt": "retry"}
        self.model = step | checked_options("model", model)
        self.session = step
        self._tools = CallOptions(in_doubt="ask") | checked_options("tools", tools)
        self._per_tool: dict[str, CallOptions | Literal[False]] = {
            name: False if own is False else checked_options(f"tool {name!r}", own)
            for name, own in (per_tool or {}).items()
        }

    def of_tool(self, name: str) -> CallOptions | Literal[False]:
        """The options of a tool, over those of all tools; False to record nothing."""
        own = self._per_tool.get(name)
        if own is False:
            return False
        return self._tools | own if own else self._tools


@dataclass
class Here:
    """The code that runs inside an execution: agents that it runs are nested there."""

    runner: SureholdRunner
    run: OpenRun
    position: str
    nested: Counter[str] = field(default_factory=Counter)

    def next(self, agent: str) -> str:
        """The position of the next agent of that name that is begun here."""
        self.nested[agent] += 1
        return f"{self.position}.{safe(agent)}{self.nested[agent]}"


HERE: ContextVar[Here | None] = ContextVar("surehold_openai_agents", default=None)


class AgentExecution:
    """One execution of an agent, with its turns and handoffs."""

    def __init__(self, here: Here, rules: RunnerRules, agent: str) -> None:
        self.here = here
        self.rules = rules
        self.agent = agent
        """The name of the agent whose turn it is."""
        self.responses = 0
        """The model's responses so far: each begins a turn."""
        self._seen: Counter[str] = Counter()

    def key(self, name: str, *parts: str) -> str:
        """The key of the next call of that name in this turn; *parts* tell them apart."""
        key = ".".join([self.here.position, str(self.responses), *map(safe, parts)])
        self._seen[f"{name} {key}"] += 1
        count = self._seen[f"{name} {key}"]
        return key if count == 1 else f"{key}.{count}"

    async def model_call(self, call: Callable[[], Any], usage: Callable[[Any], Any]) -> Any:
        """The outcome of a call of the model, in its JSON form."""
        key = f"{self.here.position}.{self.responses}"
        found = await record(f"{self.agent}.model", key, call, self.rules.model, usage=usage)
        self.responses += 1
        return found

    async def tool_call(
        self, name: str, key: str, options: CallOptions, call: Callable[[str], Any], arguments: str
    ) -> Any:
        """The outcome of a tool; what it calls itself is recorded inside."""

        async def made(arguments: str) -> Any:
            here = Here(self.here.runner, self.here.run, "in")
            with during(HERE, here):
                return await call(arguments)

        return await record(name, key, made, options, arguments, write=str, kind="tool")


async def record(
    name: str,
    key: str,
    call: Callable[..., Any],
    options: CallOptions,
    *arguments: Any,
    usage: Callable[[Any], Any] | None = None,
    write: Callable[[Any], Any] | None = None,
    kind: Literal["effect", "tool"] = "effect",
) -> Any:
    """Make one call, or return what the run has recorded of it."""
    found = open_context()
    if found is None:
        return await call(*arguments)
    context, run = found
    policy = CallPolicy(
        name=name,
        in_doubt=options.get("in_doubt") or "retry",
        probe=options.get("probe"),
        attempts=read_policy(options),
        usage=usage,
        write=write,
        kind=kind,
    )

    async def made(*arguments: Any, idempotency_key: str) -> Any:
        with during(KEY, idempotency_key):
            return await call(*arguments)

    return await perform(EffectCall(context, run, policy), key, Called(made, arguments, {}))


def safe(part: str) -> str:
    """*part* without what separates the parts of a call's id."""
    return part.replace("%", "%25").replace("/", "%2F").replace("@", "%40").replace("]", "%5D")
