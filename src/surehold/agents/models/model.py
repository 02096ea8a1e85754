"""Models: one small protocol, and opening one by name.

Messages are plain dicts: ``{"role": "system" | "user" | "assistant" | "tool", "content": str}``. An
assistant's may have ``tool_calls``, a list of ``{"id", "name", "arguments"}``; a tool's has the
``tool_call_id`` that it answers and the tool's ``name``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from surehold.core.values import Usage
from surehold.errors import UsageError

Message: TypeAlias = Mapping[str, Any]

VARIABLE = "SUREHOLD_MODEL"


@dataclass(frozen=True)
class ToolSpec:
    """Description of a tool for a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call that a model asks for."""

    id: str
    name: str
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, Mapping):
            raise UsageError(
                f"the arguments of the tool call {self.name!r} are {self.arguments!r:.60}",
                hint="give a dict; json.loads() reads the text that a provider sends",
            )

    def to_dict(self) -> dict[str, Any]:
        """The call as a message or a journal holds it."""
        return {"id": self.id, "name": self.name, "arguments": dict(self.arguments)}

    def answered(self, text: str) -> dict[str, Any]:
        """The message that tells the model what came of the call."""
        return {"role": "tool", "tool_call_id": self.id, "name": self.name, "content": text}


@dataclass(frozen=True)
class Reply:
    """A model's answer: text, tool calls, or the structured answer that was asked for."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    data: Any = None
    """The structured answer, as parsed JSON; None if there is none."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return message


@runtime_checkable
class Model(Protocol):
    """Anything that answers messages."""

    @property
    def name(self) -> str:
        """Its name, such as ``llama3.2``."""

    async def respond(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """Answer *messages* with tool calls or, without any, a text.

        With *schema* the answer is in `Reply.data` and fits it. *on_text* receives pieces of the
        text as they come.
        """


ModelFactory: TypeAlias = Callable[..., Model]
"""Makes a model from its name, which may be empty, and the settings by keyword."""

_SETTINGS = (
    *("base_url", "api_key", "temperature", "top_p", "thinking", "max_tokens", "prices"),
    "force_schema",
)
_LOCAL_SETTINGS = ("threads", *_SETTINGS[2:])

_factories: dict[str, ModelFactory] = {}


def register_provider(name: str, factory: ModelFactory) -> None:
    """Register ``factory(model, **settings)`` as a provider for `open_model`."""
    if not name or ":" in name:
        raise UsageError(
            f"{name!r} is not a name for a provider", hint="give a word without a colon"
        )
    _factories[name] = factory


def open_model(provider: str | None = None, model: str | None = None, **settings: Any) -> Model:
    """Open a model by name: ``("ollama", "llama3.2")`` or ``"ollama:llama3.2"``.

    Without a provider and a model, the environment variable ``SUREHOLD_MODEL`` names them. The
    providers are ``local`` (a small model in this process, the extra ``local``), those of
    `register_provider`, and all that pydantic-ai knows (the extra ``llm``), such as
    ``openai``, ``anthropic``, ``google`` and ``ollama``. Any OpenAI-compatible server is reached
    with ``open_model("openai", name, base_url=...)`` or the variable ``OPENAI_BASE_URL``, by chat
    completions; ``openai-responses`` uses the Responses interface there.

    Settings: *base_url*, *api_key*, *temperature*, *max_tokens*, *top_p*, *thinking* (how hard:
    ``minimal`` to ``high``), *prices* (see `models.prices`) and *force_schema*, for
    small models: the answer is held to a JSON schema that tool calls are part of.
    """
    provider, model = _named(provider, model)
    factory = _factories.get(provider)
    if factory is not None:
        return factory(model, **settings)
    known = _LOCAL_SETTINGS if provider == "local" else _SETTINGS
    for name in settings:
        if name not in known:
            raise UsageError(
                f"a model of {provider} has no setting {name!r}", hint=f"it has: {', '.join(known)}"
            )
    if provider == "local":
        from surehold.agents.models.local import open_local

        return open_local(model, **settings)
    from surehold.agents.models.pydantic_ai import open_provided

    return open_provided(provider, model, registered=("local", *sorted(_factories)), **settings)


def _named(provider: str | None, model: str | None) -> tuple[str, str]:
    if not provider and not model:
        chosen = os.environ.get(VARIABLE, "")
        if not chosen:
            raise UsageError(
                "no model is set",
                hint=f"name one, or set {VARIABLE}, to ollama:llama3.2 for example",
            )
        provider = chosen
    if not model and provider is not None:
        provider, _, model = provider.partition(":")
    elif not provider and model is not None:
        provider, _, model = model.partition(":")
        if not model:
            raise UsageError(
                f"the model {provider!r} names no provider", hint=f"write ollama:{provider}"
            )
    return provider or "", model or ""
