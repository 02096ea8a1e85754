"""A graph that is ready to be executed, and what may be wrong with one that is not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from holdfast.runtime.graph.edges import Edge
from holdfast.runtime.graph.node_result import NodeFunction
from holdfast.runtime.graph.shape import Shape

__all__ = ["Plan", "problems"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop needs of a graph."""

    name: str
    nodes: Mapping[str, NodeFunction]
    edges: Mapping[str, Sequence[Edge]]
    entry: str
    exits: frozenset[str]
    before: Collection[str]
    max_iterations: int
    version: int
    snapshots: bool
    shape: Shape
    fingerprint: str
    form: str = ""
    """Which class managers give its checkpoints out as: "" for State, "agent" for AgentState."""
    entry_point: str = ""
    """``module:graph``, where it is found again."""


def problems(
    nodes: Collection[str], edges: Sequence[Edge], entry: str | None, exits: Collection[str]
) -> Iterator[str]:
    """What keeps a graph from being executed."""
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
