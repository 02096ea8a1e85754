"""Registers Microsoft Agent Framework's types with the codec.

Its messages and events are ordinary objects, and a request names the class of its answer. Such a
class is stored by its name, and read back only if it is known here: a class of the framework, one
that this process has saved before, or one that was passed in `types=`.
"""

from __future__ import annotations

import dataclasses
import sys
from abc import ABCMeta
from collections.abc import Iterable, Iterator
from enum import Enum, EnumMeta
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any

import agent_framework

from surehold.core.values import register_type
from surehold.integrations.type_learning import adopt, type_name

_PACKAGES = ("agent_framework", "agent_framework_orchestrations")
_OBJECTS = frozenset(
    [
        *("Message", "Content", "ChatResponse", "ChatResponseUpdate"),
        *("AgentResponse", "AgentResponseUpdate", "AgentSession", "WorkflowEvent"),
    ]
)
"""Data classes of the framework that are not dataclasses."""
_PLAIN = (str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object, type(None))
_classes: dict[str, type] = {type_name(cls): cls for cls in _PLAIN}


def register_framework() -> None:
    """Register the framework's data types, as far as its modules are loaded."""
    _register_references()
    for name in (*_OBJECTS, "WorkflowMessage", "AgentExecutorResponse"):
        getattr(agent_framework, name, None)  # this loads its module
    learn(_framework_classes())


def learn(classes: Iterable[type]) -> None:
    """Allow objects of *classes*, and the classes themselves, to be read."""
    for cls in classes:
        _classes[type_name(cls)] = cls
        adopt([cls], objects=True)


def _framework_classes() -> Iterator[type]:
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in _PACKAGES:
            continue
        for cls in [*vars(module).values()]:
            if isinstance(cls, type) and cls.__module__ == name and _is_data(cls):
                yield cls


def _is_data(cls: type) -> bool:
    return (
        cls.__name__ in _OBJECTS
        or issubclass(cls, Enum)
        or dataclasses.is_dataclass(cls)
        or hasattr(cls, "__pydantic_fields__")
    )


@cache
def _register_references() -> None:
    """Register classes that are values themselves."""
    for metaclass in (type, ABCMeta, EnumMeta):
        register_type(metaclass, type_name(metaclass), encode=_name, decode=_class)
    register_type(
        GenericAlias,
        encode=lambda alias: [alias.__origin__, *alias.__args__],
        decode=lambda parts: GenericAlias(parts[0], tuple(parts[1:])),
    )
    register_type(
        UnionType,
        encode=lambda union: list(union.__args__),
        decode=lambda parts: reduce(or_, parts),
    )


def _name(cls: type) -> str:
    name = type_name(cls)
    _classes.setdefault(name, cls)
    return name


def _class(name: Any) -> type:
    found = _classes.get(name)
    if found is None:
        raise ValueError(f"{name} is not known here: name it in types=")
    return found
