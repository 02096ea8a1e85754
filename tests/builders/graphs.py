"""Small graphs and observers that the tests of the runtime share."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from surehold import CheckpointConfig, Event, GraphConfig, State, StateGraph


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.type == kind]


class Counting:
    """Counts up to a goal, one step a time, and can be told to fail at one."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.fails_at: int | None = None
        self.executed: list[int] = []

    def up(self, state: State) -> dict[str, int]:
        self.executed.append(state["n"])
        if state["n"] == self.fails_at:
            raise ValueError("told to fail")
        return {"n": state["n"] + 1}

    def graph(self, **config: Any) -> StateGraph:
        settings = {key: config.pop(key) for key in [*config] if key in GRAPH_KEYS}
        graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(**config), **settings))
        graph.add_node("up", self.up)
        graph.add_node("done", lambda state: {"done": True})
        graph.add_edge("up", "done", lambda state: state["n"] >= self.goal, name="enough")
        graph.add_edge("up", "up")
        graph.set_entry_point("up")
        graph.set_exit_point("done")
        return graph


GRAPH_KEYS = {"name", "observer", "max_iterations", "version", "signals", "snapshots"}


def line(*nodes: Any, **config: Any) -> StateGraph:
    """A graph that executes these functions one after another."""
    settings = {key: config.pop(key) for key in [*config] if key in GRAPH_KEYS}
    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(**config), **settings))
    names = [_name(node, number) for number, node in enumerate(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    for source, target in pairwise(names):
        graph.add_edge(source, target)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def _name(node: Any, number: int) -> str:
    name: str = getattr(node, "__name__", "<lambda>")
    return f"node{number}" if name == "<lambda>" else name
