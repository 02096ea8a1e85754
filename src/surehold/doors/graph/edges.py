"""Edges and the predicates that choose between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from surehold.core.state import State
from surehold.doors.checks import is_async, truth_of
from surehold.errors import UsageError

Predicate: TypeAlias = Callable[[State], bool | Awaitable[bool]]


class Edge(msgspec.Struct, frozen=True):
    """A way from one node to another, taken if its predicate is true or absent."""

    source: str
    target: str
    predicate: Predicate | None = None
    name: str = ""

    def facts(self, index: int) -> dict[str, Any]:
        """Data of the events about this edge, the *index*-th of its source."""
        return {
            "from": self.source,
            "to": self.target,
            "edge_index": index,
            "edge_name": self.name,
            "has_predicate": self.predicate is not None,
        }


def key_exists(key: str) -> Predicate:
    """Predicate: the state has *key*.

    >>> key_exists("pages")(State.new({"pages": []}))
    True
    """
    return _named(lambda state: key in state, f"key_exists({key!r})")


def key_equals(key: str, value: Any) -> Predicate:
    """Predicate: the state has *key* with that value.

    >>> key_equals("tags", ["a"])(State.new({"tags": ["a"]})), key_equals("n", 1)(State.new())
    (True, False)
    """
    return _named(
        lambda state: key in state and bool(state[key] == value), f"key_equals({key!r}, {value!r})"
    )


def not_(predicate: Predicate) -> Predicate:
    """Predicate: *predicate* is false."""
    _check(predicate)
    return _named(lambda state: not _truth(predicate, state), f"not_({describe(predicate)})")


def all_of(*predicates: Predicate) -> Predicate:
    """Predicate: all are true; evaluated in order up to the first that is false."""
    _check(*predicates)
    return _named(
        lambda state: all(_truth(one, state) for one in predicates), _joined("all_of", predicates)
    )


def any_of(*predicates: Predicate) -> Predicate:
    """Predicate: one is true; evaluated in order up to the first that is true."""
    _check(*predicates)
    return _named(
        lambda state: any(_truth(one, state) for one in predicates), _joined("any_of", predicates)
    )


def describe(predicate: Predicate | None) -> str:
    """The name of a predicate; empty for a lambda and for an edge without one."""
    name = "" if predicate is None else getattr(predicate, "__name__", type(predicate).__name__)
    return "" if name == "<lambda>" else name


def _named(predicate: Predicate, name: str) -> Predicate:
    predicate.__name__ = name
    return predicate


def _joined(word: str, predicates: Sequence[Predicate]) -> str:
    return f"{word}({', '.join(describe(one) or 'lambda' for one in predicates)})"


_PLAIN = "combine plain functions; an edge itself takes an async one"


def _check(*predicates: Any) -> None:
    for one in predicates:
        if not callable(one):
            raise UsageError(f"{one!r} is not a predicate", hint="give a function of the state")
        if is_async(one):
            raise UsageError(f"predicate {describe(one)!r} is async", hint=_PLAIN)


def _truth(predicate: Predicate, state: State) -> bool:
    return truth_of(predicate(state), f"predicate {describe(predicate)!r} is async", _PLAIN)
