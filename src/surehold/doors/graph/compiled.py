"""A graph that is ready to be executed, its shape, and the problems of others."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from surehold.core.policy import RetryPolicy
from surehold.core.records import Door
from surehold.doors.graph.edges import Edge
from surehold.doors.graph.node_result import NodeFunction
from surehold.doors.resume import Shape


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
        yield f"its entry point {entry!r} is not a node"
    if not exits:
        yield "it has no exit point"
    yield from (f"its exit point {node!r} is not a node" for node in exits if node not in nodes)
    for edge in edges:
        for end in (edge.source, edge.target):
            if end not in nodes:
                yield f"the edge {edge.source!r} -> {edge.target!r}: {end!r} is not a node"
    leaving = {edge.source for edge in edges}
    for node in nodes:
        if node not in exits and node not in leaving:
            yield f"node {node!r} has no outgoing edge and is not an exit point"
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
