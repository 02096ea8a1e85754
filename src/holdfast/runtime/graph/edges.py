"""Edges, and the predicates that tell which one is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.core.state import State
from holdfast.errors import UsageError

__all__ = ["Edge", "Predicate", "all_of", "any_of", "key_equals", "key_exists", "not_"]

Predicate: TypeAlias = Callable[[State], bool]


class Edge(msgspec.Struct, frozen=True):
    """The way from one node to another; taken if its predicate, where it has one, says yes."""

    source: str
    target: str
    predicate: Predicate | None = None
    name: str = ""


def key_exists(key: str) -> Predicate:
    """True if the state has *key*.

    >>> key_exists("pages")(State.new({"pages": []}))
    True
    """
    return _named(lambda state: key in state, f"key_exists({key!r})")


def key_equals(key: str, value: Any) -> Predicate:
    """True if the state has *key*, with that value.

    >>> key_equals("tags", ["a"])(State.new({"tags": ["a"]})), key_equals("n", 1)(State.new())
    (True, False)
    """
    return _named(
        lambda state: key in state and bool(state[key] == value), f"key_equals({key!r}, {value!r})"
    )


def not_(predicate: Predicate) -> Predicate:
    """True if *predicate* is not."""
    _check(predicate)
    return _named(lambda state: not predicate(state), f"not_({describe(predicate)})")


def all_of(*predicates: Predicate) -> Predicate:
    """True if all of them are; they are asked in order, until one is not."""
    _check(*predicates)
    return _named(
        lambda state: all(one(state) for one in predicates), _joined("all_of", predicates)
    )


def any_of(*predicates: Predicate) -> Predicate:
    """True if one of them is; they are asked in order, until one is."""
    _check(*predicates)
    return _named(
        lambda state: any(one(state) for one in predicates), _joined("any_of", predicates)
    )


def describe(predicate: Predicate | None) -> str:
    """What a predicate is called; empty for an edge without one, and for a lambda."""
    name = "" if predicate is None else getattr(predicate, "__name__", type(predicate).__name__)
    return "" if name == "<lambda>" else name


def _named(predicate: Predicate, name: str) -> Predicate:
    predicate.__name__ = name
    return predicate


def _joined(word: str, predicates: Sequence[Predicate]) -> str:
    return f"{word}({', '.join(describe(one) or 'lambda' for one in predicates)})"


def _check(*predicates: object) -> None:
    for one in predicates:
        if not callable(one):
            raise UsageError(f"{one!r} is no predicate", hint="give a function of the state")
