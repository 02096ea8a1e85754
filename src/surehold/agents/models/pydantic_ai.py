"""Models of every provider that pydantic-ai knows."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from surehold.agents.models.json_tool_calls import forced_schema, plain_turns, read_forced
from surehold.agents.models.model import Message, Reply, ToolCall, ToolSpec
from surehold.agents.models.prices import Prices, cost_of
from surehold.core.values import Usage
from surehold.errors import MissingExtraError, UsageError
from surehold.lazy import extra

if TYPE_CHECKING:
    from pydantic_ai import messages as parts
    from pydantic_ai.models import Model as LibraryModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

_FAMILIAR = ("anthropic", "google", "groq", "mistral", "ollama", "openai", "openrouter")
_ADDRESS = "write http://host:port/v1, with the host and port of the server"
_ANSWER = "answer"
"""The tool that returns a structured answer where other tools are offered too."""


def open_provided(
    provider: str,
    model: str,
    *,
    registered: Sequence[str] = (),
    base_url: str | None = None,
    api_key: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    top_p: float | None = None,
    thinking: Literal["minimal", "low", "medium", "high"] | None = None,
    prices: Prices | None = None,
    force_schema: bool = False,
) -> ProvidedModel:
    """See `surehold.agents.models.open_model`."""
    with extra("llm", f"models of {provider!r} need the package 'pydantic-ai-slim'"):
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    if provider == "ollama" and base_url is None:
        base_url = ollama_url(os.environ)
    if base_url is not None and not address_of(base_url):
        raise UsageError(f"{provider} has a base_url that names no server", hint=_ADDRESS)
    # Servers that speak OpenAI's language know its chat, and seldom its newer interface.
    elsewhere = base_url or os.environ.get("OPENAI_BASE_URL", "")
    is_other = provider == "openai" and elsewhere and not _is_openais(elsewhere)
    kind = "openai-chat" if is_other else provider
    cls = _provider_class(provider, kind, registered)
    if not model:
        raise UsageError(f"which model of {provider}?", hint=f"write {provider}:NAME")
    if kind == "openai-chat" and elsewhere and api_key is None:
        api_key = os.environ.get("OPENAI_API_KEY") or "none"
    given = {"base_url": base_url, "api_key": api_key}
    known = {name: value for name, value in given.items() if value is not None}
    try:
        made = infer_model(f"{kind}:{model}", provider_factory=lambda _: cls(**known))
    except (UserError, TypeError, ValueError) as error:
        raise _cannot_open(f"{provider}:{model}", str(error)) from error
    wanted: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    wanted |= {"top_p": top_p, "thinking": thinking}
    settings: Any = {name: value for name, value in wanted.items() if value is not None}
    url = base_url if provider != "ollama" and base_url else ""
    return ProvidedModel(provider, model, made, settings, prices, url, force_schema)


def _is_openais(url: str) -> bool:
    return f".{address_of(url).partition(':')[0]}".endswith(".openai.com")


def _provider_class(provider: str, kind: str, registered: Sequence[str]) -> Any:
    from pydantic_ai.providers import infer_provider_class

    try:
        return infer_provider_class(kind)
    except ValueError as error:
        raise UsageError(
            f"no provider {provider!r}",
            hint="a model is written PROVIDER:NAME, with one of"
            f" {', '.join(sorted({*_FAMILIAR, *registered}))}, or another that"
            " pydantic-ai knows; any OpenAI-compatible server with provider openai and base_url",
        ) from error
    except ImportError as error:
        wanted = re.search(r"pydantic-ai-slim\[[\w-]+\]", str(error))
        raise MissingExtraError(
            f"models of {provider!r} need a package that is not installed",
            hint=f"pip install '{wanted[0] if wanted else 'surehold[llm]'}'",
        ) from error


def _cannot_open(model: str, why: str) -> UsageError:
    """The error that names the variable to set, without the library's own advice."""
    variables = re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`", why)
    if not variables:
        return UsageError(f"{model} cannot be opened: {why}")
    if not variables[0].endswith(("_KEY", "_TOKEN")):
        return UsageError(f"{model} is not set up", hint=f"set the variable {variables[0]}")
    return UsageError(
        f"{model} needs an API key",
        hint=f"set the variable {variables[0]}, or give api_key: to an agent with"
        " provider_config={'api_key': ...}",
        variable=variables[0],
    )


def ollama_url(environ: Mapping[str, str]) -> str:
    """The address of Ollama, by its own variable or by default.

    >>> ollama_url({}), ollama_url({"OLLAMA_HOST": "box:11434"})
    ('http://127.0.0.1:11434/v1', 'http://box:11434/v1')
    """
    host = environ.get("OLLAMA_BASE_URL") or environ.get("OLLAMA_HOST") or "127.0.0.1:11434"
    if "://" not in host:
        host = f"http://{host}"
    return host if host.rstrip("/").endswith("/v1") else f"{host.rstrip('/')}/v1"


def address_of(url: str) -> str:
    """Host and port of *url*, without credentials and path; "" if it names no server.

    >>> address_of("http://me:secret@box:8080/v1?token=x"), address_of("https://[::1]/v1")
    ('box:8080', '[::1]:443')
    """
    try:
        named = urlsplit(url)
        host, port = named.hostname or "", named.port
    except ValueError:
        return ""
    if not host or named.scheme not in ("http", "https"):
        return ""
    port = port or (80 if named.scheme == "http" else 443)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _where_to_look(provider: str, base_url: str, environ: Mapping[str, str]) -> str:
    """A hint for a model that cannot be reached."""
    if base_url:
        return "is the server running? base_url says where it is"
    variable = f"{provider.upper()}_BASE_URL"
    if provider == "ollama":
        variable = variable if environ.get(variable) else "OLLAMA_HOST"
        return f"is Ollama running? {variable} or base_url says where it is"
    if environ.get(variable):
        return f"is the server running? {variable} says where it is"
    return "is this machine online? base_url names another address"


def _root(error: BaseException) -> str:
    """The root cause of a failure, in the words of the system where there are some."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # the text it comes with names the address once more
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@dataclasses.dataclass(eq=False, repr=False)
class ProvidedModel:
    """A model that pydantic-ai reaches."""

    provider: str
    model: str
    library: LibraryModel[Any]
    settings: ModelSettings
    prices: Prices | None
    base_url: str
    force_schema: bool

    @property
    def name(self) -> str:
        """The model's name, without its provider."""
        return self.model

    async def __aenter__(self) -> Self:
        """Keep connections open for the next calls."""
        await self.library.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.library.__aexit__(*raised)

    async def respond(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        """See `surehold.agents.models.Model`."""
        if self.force_schema and tools:
            whole = forced_schema(tools, schema)
            turns = plain_turns(messages, tools)
            reply = await self._request(turns, (), whole, on_text)
            made = read_forced(reply.text, f"call_{len(messages)}")
            if isinstance(made, ToolCall):
                return dataclasses.replace(reply, text="", data=None, tool_calls=(made,))
            text, data = made
            return dataclasses.replace(reply, text=text, data=data)
        if self.force_schema:
            messages = plain_turns(messages, ())
        return await self._request(messages, tools, schema, on_text)

    async def _request(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        schema: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Reply:
        from pydantic_ai import direct

        asked = _library_messages(messages)
        how: dict[str, Any] = {
            "model_settings": self.settings,
            "model_request_parameters": self._parameters(tools, schema),
        }
        async with self, self._reached():
            if on_text is None:
                response = await direct.model_request(self.library, asked, **how)
            else:
                async with direct.model_request_stream(self.library, asked, **how) as stream:
                    async for event in stream:
                        piece = _text_of(event)
                        if piece:
                            on_text(piece)
                    response = stream.get()
        return self._reply(response, schema is not None)

    @asynccontextmanager
    async def _reached(self) -> AsyncIterator[None]:
        """Turn a failure to reach the model into an error that names the address.

        It is a builtin error, which a journal gives back unchanged and a fleet retries.
        """
        from pydantic_ai import exceptions

        # Older versions have no class for it.
        unreached = getattr(exceptions, "ModelConnectionError", exceptions.ModelAPIError)
        try:
            yield
        except exceptions.ModelHTTPError as error:
            if error.status_code != 404 or (asked := self._asked_at()) is None:
                raise
            path, advice = asked
            raise UsageError(
                f"{address_of(self.library.base_url or '')} answered 404 Not Found to POST {path},"
                f" asked for the model {self.model}",
                hint=f"check the model's name and the address; {advice}",
            ) from error
        except unreached as error:
            where = address_of(self.library.base_url or "")
            advice = _where_to_look(self.provider, self.base_url, os.environ)
            raise ConnectionError(
                f"the model {self.provider}:{self.model} cannot be reached"
                f"{f' at {where}' if where else ''}: {_root(error)} ({advice})"
            ) from error

    def _asked_at(self) -> tuple[str, str] | None:
        """The path of a request, and what else to try; None if the path is not known."""
        begin = urlsplit(self.library.base_url or "").path.rstrip("/")
        match type(self.library).__name__:
            case "OpenAIChatModel":
                advice = "the address mostly ends in /v1"
                if self.provider == "openai":
                    advice += f", and openai-responses:{self.model} asks at {begin}/responses"
                return f"{begin}/chat/completions", advice
            case "OpenAIResponsesModel":
                path = f"{begin}/chat/completions"
                return f"{begin}/responses", f"openai-chat:{self.model} asks at {path}"
        return None

    def _parameters(
        self, tools: Sequence[ToolSpec], schema: Mapping[str, Any] | None
    ) -> ModelRequestParameters:
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.output import OutputObjectDefinition
        from pydantic_ai.tools import ToolDefinition

        made = ModelRequestParameters(
            function_tools=[
                ToolDefinition(
                    name=tool.name,
                    description=tool.description,
                    parameters_json_schema=dict(tool.parameters),
                )
                for tool in tools
            ]
        )
        if schema is None:
            return made
        native = self.library.profile.get("supports_json_schema_output", False)
        if native and not tools:
            answer = OutputObjectDefinition(json_schema=dict(schema), name=_ANSWER)
            return dataclasses.replace(made, output_mode="native", output_object=answer)
        # Beside tools, a schema for the text is refused or ignored by many; a tool never is.
        through = ToolDefinition(
            name=_ANSWER,
            description="Give the final answer.",
            parameters_json_schema=dict(schema),
            kind="output",
        )
        return dataclasses.replace(
            made, output_mode="tool", output_tools=[through], allow_text_output=False
        )

    def _reply(self, response: parts.ModelResponse, structured: bool) -> Reply:
        from pydantic_ai.messages import TextPart, ToolCallPart

        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
        calls = [
            ToolCall(part.tool_call_id, part.tool_name, part.args_as_dict())
            for part in response.parts
            if isinstance(part, ToolCallPart)
        ]
        data = None
        if structured:
            answers = [call.arguments for call in calls if call.name == _ANSWER]
            calls = [call for call in calls if call.name != _ANSWER]
            data = answers[0] if answers else _json(text)
        tokens = Usage(response.usage.input_tokens, response.usage.output_tokens)
        name = response.model_name or self.model
        prices, url = self.prices, self.base_url
        cost = cost_of(tokens, self.provider, self.model, prices, base_url=url)
        return Reply(text, tuple(calls), data, dataclasses.replace(tokens, cost_usd=cost), name)


def _library_messages(messages: Sequence[Message]) -> list[parts.ModelMessage]:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    made: list[parts.ModelMessage] = []
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "assistant":
            said: list[Any] = [TextPart(text)] if text else []
            said += [
                ToolCallPart(call["name"], dict(call["arguments"]), call["id"])
                for call in message.get("tool_calls") or ()
            ]
            made.append(ModelResponse(parts=said))
            continue
        part: Any
        if message["role"] == "system":
            part = SystemPromptPart(text)
        elif message["role"] == "tool":
            part = ToolReturnPart(message.get("name", ""), text, message["tool_call_id"])
        else:
            part = UserPromptPart(text)
        if made and isinstance(made[-1], ModelRequest):
            made[-1] = ModelRequest(parts=[*made[-1].parts, part])
        else:
            made.append(ModelRequest(parts=[part]))
    return made


def _text_of(event: Any) -> str:
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
