"""Lanes for branches and forks, as `git log --graph` draws them.

>>> for row in draw([("d", "b"), ("c", "b"), ("b", "a"), ("a", None)]):
...     print(f"{row.prefix} {row.id or str()}".rstrip())
* d
| * c
|/
* b
* a
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Row(NamedTuple):
    """A line of the drawing: the lanes at its left, and the id of its node, if any."""

    prefix: str
    id: str | None = None


def draw(nodes: Iterable[tuple[str, str | None]]) -> Iterator[Row]:
    """Draw nodes with their parents, children before parents.

    A lane waits for the node that it leads to. The node takes the first lane that waits for it;
    the other lanes end at the node.
    """
    lanes: list[str | None] = []
    for node, parent in nodes:
        waiting = [at for at, wanted in enumerate(lanes) if wanted == node]
        if not waiting:
            waiting = [lanes.index(None) if None in lanes else len(lanes)]
            if waiting[0] == len(lanes):
                lanes.append(node)
        here = waiting[0]
        for at in reversed(waiting[1:]):
            yield from map(Row, _joining(lanes, here, at))
            lanes[at] = None
        while lanes and lanes[-1] is None and len(lanes) - 1 != here:
            lanes.pop()
        lanes[here] = parent
        yield Row(_marks(lanes, here), node)
        while lanes and lanes[-1] is None:
            lanes.pop()


def _marks(lanes: list[str | None], here: int) -> str:
    marks = ["*" if at == here else "|" if lane else " " for at, lane in enumerate(lanes)]
    return " ".join(marks).rstrip()


def _joining(lanes: list[str | None], here: int, at: int) -> Iterator[str]:
    """The lines on which lane *at* runs into lane *here*, past those between."""
    for gap in range(at, here, -1):
        marks = [" "] * (2 * len(lanes))
        for lane, wanted in enumerate(lanes):
            if wanted is not None and lane != at:
                marks[2 * lane] = "|"
        marks[2 * gap - 1] = "/"
        yield "".join(marks).rstrip()


def newest_first(nodes: dict[str, tuple[str | None, float]]) -> list[tuple[str, str | None]]:
    """Nodes, given with parent and time, in an order with children before parents.

    Parents outside *nodes* are ignored.
    """
    children: dict[str, int] = dict.fromkeys(nodes, 0)
    for parent, _ in nodes.values():
        if parent in children:
            children[parent] += 1
    ready = [node for node, count in children.items() if not count]
    ordered: list[tuple[str, str | None]] = []
    while ready:
        ready.sort(key=lambda node: nodes[node][1])
        node = ready.pop()
        parent = nodes[node][0]
        known = parent if parent in children else None
        ordered.append((node, known))
        if known is not None:
            children[known] -= 1
            if not children[known]:
                ready.append(known)
    return ordered
