"""A graph that is ready to be executed, its shape, and the problems of others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.policy import RetryPolicy
from surehold.core.records import Door, digest_of
from surehold.doors.graph.edges import Edge
from surehold.doors.graph.node_result import NodeFunction
from surehold.errors import ShapeError


class Shape(msgspec.Struct, frozen=True):
    """Nodes and edges by name, without the functions."""

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str, str], ...]
    """Source, target and name, in the order in which edges are tried."""
    entry: str
    exits: tuple[str, ...]
    nested: dict[str, str] = {}
    """Digests of the graphs that are nodes."""

    def digest(self) -> str:
        """A short text that identifies this shape."""
        return digest_of(msgspec.json.encode(self, order="deterministic"))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that the loop needs of a graph."""

    name: str
    nodes: Mapping[str, NodeFunction]
    policies: Mapping[str, RetryPolicy]
    edges: Mapping[str, Sequence[Edge]]
    entry: str
    exits: frozenset[str]
    before: Collection[str]
    max_iterations: int
    version: int
    snapshots: bool
    shape: Shape
    fingerprint: str
    door: Door = Door("graph")

    def straight(self) -> dict[str, str]:
        """Successors that no predicate decides on, by node."""
        return {
            node: edges[0].target for node, edges in self.edges.items() if not edges[0].predicate
        }


def problems(
    nodes: Collection[str], edges: Sequence[Edge], entry: str | None, exits: Collection[str]
) -> Iterator[str]:
    """Yield what keeps a graph from being executed."""
    if not nodes:
        yield "it has no nodes"
        return
    if entry is None:
        yield "it has no entry point"
    elif entry not in nodes:
        yield f"its entry point {entry!r} is no node"
    if not exits:
        yield "it has no exit point"
    yield from (f"its exit point {node!r} is no node" for node in exits if node not in nodes)
    for edge in edges:
        for end in (edge.source, edge.target):
            if end not in nodes:
                yield f"the edge {edge.source!r} -> {edge.target!r} names {end!r}, which is no node"
    leaving = {edge.source for edge in edges}
    for node in nodes:
        if node not in exits and node not in leaving:
            yield f"nothing leads on from {node!r}, and it is no exit point"
    if entry is None or entry not in nodes:
        return
    reached = _reached(entry, edges)
    yield from (f"nothing leads to {node!r}" for node in nodes if node not in reached)
    if exits and not reached & set(exits):
        yield "no exit point can be reached"


def _reached(entry: str, edges: Sequence[Edge]) -> set[str]:
    reached, queue = {entry}, [entry]
    for node in queue:
        for edge in edges:
            if edge.source == node and edge.target not in reached:
                reached.add(edge.target)
                queue.append(edge.target)
    return reached


def difference(then: Shape | None, now: Shape, run_id: str) -> ShapeError:
    """The error for a run begun with another graph; names the nodes and edges."""
    old = then or Shape((), (), "", ())
    facts: dict[str, list[Any]] = {
        "removed_nodes": [node for node in old.nodes if node not in now.nodes],
        "added_nodes": [node for node in now.nodes if node not in old.nodes],
        "removed_edges": [edge for edge in old.edges if edge not in now.edges],
        "added_edges": [edge for edge in now.edges if edge not in old.edges],
        "changed_nested": [
            node
            for node in {**old.nested, **now.nested}
            if old.nested.get(node) != now.nested.get(node)
        ],
    }
    said = [
        f"{what.replace('_', ' ')}: {', '.join(_shown(one) for one in which)}"
        for what, which in facts.items()
        if which
    ]
    if old.entry != now.entry:
        said.append(f"entry point {now.entry}, was {old.entry}")
    if set(old.exits) != set(now.exits):
        said.append(f"exit points {', '.join(now.exits)}, were {', '.join(old.exits)}")
    return ShapeError(
        f"run {run_id!r} was begun with another graph ({'; '.join(said) or 'another order'})",
        hint="give resume(..., force=True) if that does no harm, or raise the graph's version"
        " and register a migration",
        run_id=run_id,
        **facts,
    )


def _shown(one: object) -> str:
    if isinstance(one, tuple):
        source, target, name = one
        return f"{source} -> {target}" + (f" ({name})" if name else "")
    return str(one)
