"""Tools: plain functions that a model may call."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, Unpack, overload

import msgspec

from surehold.agents.models import ToolSpec
from surehold.core.policy import RetryOptions, RetryPolicy, read_policy, refuse_options
from surehold.engine.commit import call_beside
from surehold.engine.runs.effects import InDoubt
from surehold.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ABOUT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?\s*:\s*(\S.*)$")
_MARK = "__surehold_tool__"


class ToolOptions(RetryOptions, total=False):
    """The options of `tool`."""

    name: str | None
    read_only: bool
    idempotent: bool
    approval: bool
    checkpoint_before: bool
    record_arguments: bool | None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that an agent can call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of the arguments."""
    call: Callable[..., Any]
    types: dict[str, Any] = {}
    """Types that the arguments are converted to."""
    read_only: bool = False
    idempotent: bool = False
    approval: bool = False
    checkpoint_before: bool = False
    record_arguments: bool | None = None
    policy: RetryPolicy = RetryPolicy()
    """Attempts, time limit and concurrency of its calls."""
    agent: Any = None
    """The agent that the tool calls, for an agent as a tool."""

    @property
    def spec(self) -> ToolSpec:
        """The description of the tool for a model."""
        return ToolSpec(self.name, self.description, self.parameters)

    @property
    def in_doubt(self) -> InDoubt:
        """The policy for a call in doubt."""
        return "retry" if self.read_only or self.idempotent else "ask"

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arguments, or raise a `UsageError` that a model can read."""
        unknown = [name for name in arguments if name not in self.parameters["properties"]]
        missing = [name for name in self.parameters.get("required", ()) if name not in arguments]
        if unknown or missing:
            known = ", ".join(self.parameters["properties"]) or "none"
            what = f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}"
            raise UsageError(f"arguments of {self.name}: {what}", hint=f"they are: {known}")
        return {name: self._convert(name, value) for name, value in arguments.items()}

    def _convert(self, name: str, value: Any) -> Any:
        wanted = self.types.get(name, Any)
        if wanted is Any:
            return value
        try:
            if hasattr(wanted, "model_validate"):
                return wanted.model_validate(value)
            return msgspec.convert(value, wanted, strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            raise UsageError(f"argument {name} of {self.name}: {error}") from error

    async def run(self, arguments: Mapping[str, Any], idempotency_key: str) -> Any:
        """Call the function; a plain one on another thread."""
        given = dict(arguments)
        if "idempotency_key" in inspect.signature(self.call).parameters:
            given["idempotency_key"] = idempotency_key
        return await call_beside(self.call, kwargs=given)


ToolLike: TypeAlias = Tool | Callable[..., Any]


@overload
def tool(fn: F) -> F: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(fn: F | None = None, **options: Unpack[ToolOptions]) -> F | Callable[[F], F]:
    """Mark a function as a tool, with the properties of a call.

    - *name*: the tool's name for models, that of the function unless given.
    - *read_only* and *idempotent* functions may be called again; several calls of read-only ones
      run in parallel. If the process dies during a call of any other, the call is in doubt, and
      the run waits until `surehold.answer` says what happened.
    - *approval*: a person is asked before each call.
    - *checkpoint_before*: the run is saved before each call, with kind ``pre_operation``.
    - *record_arguments*: whether the record of a call keeps its arguments, short and without
      secrets, for people to read; unless given, those of tools that are not repeated.
    - The fields of a `RetryPolicy` (*retries*, *backoff*, *timeout*, ...), or one as *policy*. A
      call that takes longer than *timeout* is in doubt.

    A function that takes an ``idempotency_key`` receives that of its place in the run.

    >>> @tool(read_only=True)
    ... def search(query: str, limit: int = 3) -> list[str]:
    ...     "Search the library."
    ...     return [query][:limit]
    >>> read_tool(search).spec.parameters["required"]
    ['query']
    """
    refuse_options("tool", options, ToolOptions.__annotations__)
    policy = read_policy(options)
    kind: dict[str, Any] = {
        name: value for name, value in options.items() if name in Tool.__struct_fields__
    }

    def mark(function: F) -> F:
        name = options.get("name") or str(getattr(function, "__name__", ""))
        made = _make(function, **{**kind, "name": name, "policy": policy})
        setattr(function, _MARK, made)
        return function

    return mark if fn is None else mark(fn)


def read_tool(given: ToolLike) -> Tool:
    """The tool for a function; a `Tool` is returned as it is."""
    if isinstance(given, Tool):
        return given
    if not callable(given):
        raise UsageError(f"a tool is a function, not {type(given).__name__}")
    marked: Tool | None = getattr(given, _MARK, None)
    if marked is not None:
        # The mark is on the function; a method keeps the object it is bound to.
        return msgspec.structs.replace(marked, call=given)
    return _make(given, name=getattr(given, "__name__", ""))


def _make(function: Callable[..., Any], *, name: str, **kind: Any) -> Tool:
    check_tool_name(name)
    description, about = _documented(function)
    parameters = _parameters(function, name)
    hints = typing.get_type_hints(function)
    types = {each: hints.get(each, Any) for each in parameters}
    return Tool(
        name=name,
        description=description or name.replace("_", " "),
        parameters=_schema(parameters, types, about),
        call=function,
        types=types,
        **kind,
    )


def check_tool_name(name: str) -> str:
    """Return *name* if models take it for a tool's, else raise a `UsageError`."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a tool", hint="give name=, of letters, digits, _ and -"
        )
    return name


def _parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    found = {}
    for each in inspect.signature(function).parameters.values():
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise UsageError(f"tool {name!r} takes {each}", hint="give each argument a name")
        if each.name not in ("idempotency_key", "self"):
            found[each.name] = each
    return found


def _schema(
    parameters: Mapping[str, inspect.Parameter], types: Mapping[str, Any], about: Mapping[str, str]
) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for name, parameter in parameters.items():
        schema = _type_schema(types[name], name)
        definitions |= schema.pop("$defs", {})
        if parameter.default not in (parameter.empty, None):
            schema["default"] = msgspec.to_builtins(parameter.default, enc_hook=str)
        if name in about:
            schema["description"] = about[name]
        properties[name] = schema
    made: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name, each in parameters.items() if each.default is each.empty],
        "additionalProperties": False,
    }
    return {**made, "$defs": definitions} if definitions else made


def _type_schema(wanted: Any, name: str) -> dict[str, Any]:
    if wanted is Any:
        return {}
    if hasattr(wanted, "model_json_schema"):
        found: dict[str, Any] = wanted.model_json_schema()
        return found
    try:
        return msgspec.json.schema(wanted)
    except TypeError as error:
        raise UsageError(
            f"argument {name!r} is a {wanted!r}, which has no JSON schema",
            hint="use plain types, dataclasses, msgspec Structs or pydantic models",
        ) from error


def _documented(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring's first paragraph, and lines such as ``query: the words``."""
    text = inspect.getdoc(function) or ""
    first, _, rest = text.partition("\n\n")
    matches = (_ABOUT.match(line) for line in rest.splitlines())
    return " ".join(first.split()), {found[1]: found[2] for found in matches if found}


def text_of(result: Any) -> str:
    """A tool's result as text for a model."""
    if isinstance(result, str):
        return result
    return msgspec.json.encode(result, enc_hook=str).decode()
