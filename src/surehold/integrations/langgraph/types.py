"""Registers LangGraph's and LangChain's types with the codec.

Objects are stored by their fields under fixed names and restored without calling their
constructors. A class that is not listed here is registered when a value of it is first saved,
if it is made of fields.
"""

from __future__ import annotations

import copy
import importlib
import ipaddress
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec
from langchain_core import messages
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from pydantic import BaseModel

from surehold.core.values import decode, register_type
from surehold.errors import DecodeError, EncodeError
from surehold.integrations.type_learning import encode_adopting

_GRAPH_TYPES = "langgraph.types"
"""Importing it loads the LangSmith client, which takes longer than everything else together."""
_DOCUMENTS = "langchain_core.documents.base"
"""Importing it builds models that few threads hold, which takes as long as opening a storage."""

_NAMES = (
    *("HumanMessage", "AIMessage", "SystemMessage", "ToolMessage", "FunctionMessage"),
    *("ChatMessage", "RemoveMessage"),
    *("HumanMessageChunk", "AIMessageChunk", "SystemMessageChunk", "ToolMessageChunk"),
    *("FunctionMessageChunk", "ChatMessageChunk"),
)

MESSAGES: frozenset[type] = frozenset(getattr(messages, name) for name in _NAMES)
"""LangChain's message classes."""

MAKERS: dict[str, Callable[[MessageParts], Any]] = {}
"""Functions that build a message from its parts, by stored type name."""

_PLANS = 256
_IP = ("IPv4Address", "IPv4Interface", "IPv4Network", "IPv6Address", "IPv6Interface", "IPv6Network")


_put_fields, _put_given, _put_extra, _put_private = (
    vars(BaseModel)[name].__set__
    for name in (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    )
)


class Sealed:
    """A value that the user's own serializer turned into bytes."""

    __slots__ = ("data", "kind")

    def __init__(self, kind: str, data: bytes) -> None:
        self.kind = kind
        self.data = data


def encode_value(value: Any) -> bytes:
    """Encode a channel value or write; exceptions become their `repr`."""
    _register_loaded()
    try:
        return encode_adopting(value)
    except EncodeError:
        plain = _exceptions_as_text(value, {})
        if plain is value:
            raise
        return encode_adopting(plain)


def decode_value(text: bytes) -> Any:
    """Decode what `encode_value` made.

    An object of an unknown class is a dict of its fields, as with LangGraph's own savers, and a
    warning names the class.
    """
    try:
        return decode(text, strict=True)
    except DecodeError:
        for names, _, register in _LATE:
            if f'"$t":"{names}'.encode() in text:
                register()
    return decode(text, plain=True)


def _exceptions_as_text(value: Any, made: dict[int, Any]) -> Any:
    """Copy *value* with each exception replaced by its `repr`; itself without any.

    *made* holds the result for each object met so far, by its identity.
    """
    if isinstance(value, BaseException):
        return repr(value)
    if id(value) not in made:
        made[id(value)] = value  # also what a cycle finds
        made[id(value)] = _rebuilt(value, lambda part: _exceptions_as_text(part, made))
    return made[id(value)]


def _rebuilt(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Copy *value* with its parts replaced; itself if none of them changes."""
    if isinstance(value, list | tuple | set | frozenset):
        items = [replace(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if not isinstance(parts, dict):
        return value
    changed = {key: new for key, old in parts.items() if (new := replace(old)) is not old}
    if not changed:
        return value
    copied = copy.copy(value)
    (copied if isinstance(value, dict) else copied.__dict__).update(changed)
    return copied


@cache
def register_all() -> None:
    """Register all types, once per process; those of slow modules only if loaded."""
    for cls in MESSAGES:
        MAKERS[f"langchain_core.{cls.__name__}"] = _register_model(cls)
    _register_slots("langgraph.Item", Item, tuple(Item.__slots__))
    _register_slots("langgraph.Sealed", Sealed, Sealed.__slots__)
    _register_tuple(_DeltaSnapshot)
    register_type(
        TextAccessor, "langchain_core.TextAccessor", encode=str.__str__, decode=TextAccessor
    )
    register_type(
        re.Pattern, encode=lambda v: [v.pattern, v.flags], decode=lambda v: re.compile(*v)
    )
    for name in _IP:
        cls = getattr(ipaddress, name)
        register_type(cls, encode=str, decode=cls)
    _register_loaded()


def _register_loaded() -> None:
    """Register the types of the modules that were loaded meanwhile."""
    for _, module, register in _LATE:
        if module in sys.modules:
            register()


@cache
def _register_documents() -> None:
    _register_model(importlib.import_module(_DOCUMENTS).Document)


@cache
def _register_graph_types() -> None:
    types = importlib.import_module(_GRAPH_TYPES)
    _register_slots("langgraph.Send", types.Send, ("node", "arg", "timeout"))
    for plain in (types.Command, types.Interrupt, types.Overwrite, types.TimeoutPolicy):
        register_type(plain, f"langgraph.{plain.__name__}")
    _register_tuple(types.PregelTask)


_LATE: tuple[tuple[str, str, Callable[[], None]], ...] = (
    ("langgraph.", _GRAPH_TYPES, _register_graph_types),
    ("langchain_core.Document", _DOCUMENTS, _register_documents),
)
"""Types that are registered once their module is loaded, or a value of them is met: how their
stored names begin, the module, and what registers them."""


def assemble(cls: Any, fields: Any, given: set[str], extra: Any, private: Any = None) -> Any:
    """Build a LangChain model that owns exactly these parts."""
    made = object.__new__(cls)
    _put_fields(made, fields)
    _put_given(made, given)
    _put_extra(made, extra)
    _put_private(made, private)
    return made


class MessageParts(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The stored form of a LangChain model."""

    fields: dict[str, Any]
    set: list[str] | None = None
    """The names of the fields that were set, if they differ from those stored."""
    extra: dict[str, Any] | None = None
    private: dict[str, Any] | None = None


def _register_model(cls: Any) -> Callable[[MessageParts], Any]:
    """Register a LangChain model; returns the function that builds one from its parts."""
    take, make = _model_parts(cls)
    name = f"langchain_core.{cls.__name__}"
    register_type(cls, name, encode=take, decode=partial(_make_with, make))
    return make


def _make_with(make: Callable[[MessageParts], Any], parts: dict[str, Any]) -> Any:
    return make(MessageParts(**parts))


def _model_parts(cls: Any) -> tuple[Callable[[Any], Any], Callable[[MessageParts], Any]]:
    """Build the functions that take a model apart, without defaults, and back."""
    defaults: dict[str, Any] = {}
    containers: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        if field.default_factory is not None:
            containers[name] = field.default_factory
        elif not field.is_required():
            defaults[name] = field.default
    names = list(cls.model_fields)
    required = cls.model_fields.keys() - defaults.keys() - containers.keys()
    template = {name: defaults.get(name) for name in names}
    allows_extra = cls.model_config.get("extra") == "allow"

    def take(value: Any) -> dict[str, Any]:
        fields = value.__dict__
        own = {
            name: fields[name]
            for name in names
            if not (
                (name in defaults and _same(fields[name], defaults[name]))
                or (name in containers and not fields[name] and type(fields[name]) in (dict, list))
            )
        }
        parts: dict[str, Any] = {"fields": own}
        if value.__pydantic_fields_set__ != own.keys():
            parts["set"] = sorted(value.__pydantic_fields_set__)
        if value.__pydantic_extra__:
            parts["extra"] = value.__pydantic_extra__
        if value.__pydantic_private__:
            parts["private"] = value.__pydantic_private__
        return parts

    plans: dict[tuple[str, ...], list[tuple[str, Any]]] = {}
    """By the names of the stored fields: the containers to create for the fields left out."""

    def plan(own: dict[str, Any]) -> list[tuple[str, Any]]:
        if not required <= own.keys() or not own.keys() <= template.keys():
            raise ValueError(f"the fields {sorted(own)} are not those of a {cls.__name__}")
        missing = [(name, made) for name, made in containers.items() if name not in own]
        if len(plans) < _PLANS:
            plans[tuple(own)] = missing
        return missing

    def make(parts: MessageParts) -> Any:
        own = parts.fields
        missing = plans.get(tuple(own))
        values = template | own
        for name, container in plan(own) if missing is None else missing:
            values[name] = container()
        made = object.__new__(cls)
        _put_fields(made, values)
        _put_given(made, set(own if parts.set is None else parts.set))
        _put_extra(made, parts.extra or ({} if allows_extra else None))
        _put_private(made, parts.private)
        return made

    return take, make


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and value == default)


def _register_slots(name: str, cls: Any, fields: tuple[str, ...]) -> None:
    def make(parts: list[Any]) -> Any:
        made = object.__new__(cls)
        for field, part in zip(fields, parts, strict=True):
            setattr(made, field, part)
        return made

    register_type(
        cls, name, encode=lambda value: [getattr(value, field) for field in fields], decode=make
    )


def _register_tuple(cls: Any) -> None:
    register_type(
        cls,
        f"langgraph.{cls.__name__.lstrip('_')}",
        encode=list,
        decode=lambda items: tuple.__new__(cls, items),
    )
