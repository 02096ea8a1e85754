"""The graph of a run as a drawing: what was recorded, with the path taken.

A run of a graph records its nodes and edges. Of other runs only the transitions between the
recorded nodes, or calls, are known, and only these are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from surehold.core.records import Header
from surehold.doors.resume import Shape, read_progress
from surehold.engine.managers import CheckpointManager
from surehold.errors import SureholdError
from surehold.storage.base import RecordQuery
from surehold.views.run import RunView
from surehold.views.timeline import record_after
from surehold.views.words import cut

_MOST_NODES = 60
_MOST_STEPS = 500
"""Checkpoints that the search for transitions looks back."""
_TALL, _DOWN, _APART, _EDGE = 46, 38, 30, 40
"""Height of a node, space below it, space between two, and room for edges at the sides."""


class DrawnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node in its place."""

    name: str
    label: str
    fact: str
    """Its time and cost, in a few words."""
    x: float
    y: float
    width: float
    height: float
    visits: int
    is_here: bool
    is_likely: bool
    is_exit: bool
    seq: int | None
    """The newest checkpoint of the node among the listed steps."""


class DrawnEdge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge, or a transition."""

    source: str
    target: str
    label: str
    taken: int
    path: str
    """The line as SVG draws it."""
    x: float
    y: float
    """The place of the label."""
    is_aside: bool
    """True if the label begins there, else it is centred."""


class GraphDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes and edges with their places."""

    nodes: list[DrawnNode]
    edges: list[DrawnEdge]
    width: float
    height: float
    is_shape: bool
    """True if the graph itself was recorded; else these are the transitions that were seen."""
    hidden: int = 0
    """Nodes that were left out."""
    examined: int | None = None
    """The number of steps that were looked at, if there are more."""


class _Recorded(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[str]
    edges: list[tuple[str, str, str]]
    path: list[str]
    here: str | None
    likely: frozenset[str] = frozenset()
    """Nodes that a resume probably executes."""
    exits: frozenset[str] = frozenset()
    is_shape: bool = False
    examined: int | None = None


def graph_of(
    manager: CheckpointManager, view: RunView, facts: Mapping[str, str] | None = None
) -> GraphDrawing | None:
    """The drawing of a run up to a checkpoint; None if nothing was recorded.

    *facts* are the words below the names of nodes.
    """
    found = _shape_of(manager, view.chosen.header) or _seen(manager, view)
    if not found.nodes:
        return None
    newest = {one.header.node: one.header.seq for one in reversed(view.entries) if one.header.node}
    return _draw(found, newest, facts or {})


def graph_of_resume(
    manager: CheckpointManager, header: Header, likely: Iterable[str], facts: Mapping[str, str]
) -> GraphDrawing | None:
    """The recorded graph, if there is one, with the *likely* steps of a resume."""
    found = _shape_of(manager, header)
    if found is None:
        return None
    return _draw(msgspec.structs.replace(found, likely=frozenset(likely)), {}, facts)


def _shape_of(manager: CheckpointManager, header: Header) -> _Recorded | None:
    try:
        progress = read_progress(manager.reader.load_visible(header))
    except SureholdError:
        return None
    shape: Shape | None = progress.shape
    if shape is None:
        return None
    return _Recorded(
        nodes=[*shape.nodes],
        edges=[*shape.edges],
        path=progress.path,
        here=None if header.status == "completed" else progress.next,
        exits=frozenset(shape.exits),
        is_shape=True,
    )


def _seen(manager: CheckpointManager, view: RunView) -> _Recorded:
    """The nodes of the checkpoints up to the chosen one; else the listed calls."""
    chosen = view.chosen.header
    before = record_after(manager, view.run, chosen.seq)
    query = RecordQuery(
        run_id=chosen.run_id, scope=chosen.scope, before=before, limit=_MOST_STEPS + 1
    )
    headers = [*manager.storage.headers(query)]
    more, headers = len(headers) > _MOST_STEPS, headers[:_MOST_STEPS]
    path = [one.node for one in reversed(headers) if one.node]
    if not path:
        notes = [note for entry in reversed(view.entries) for note in entry.notes]
        notes += view.after
        path = [note.name for note in notes if note.kind == "effect" and note.state == "done"]
    edges = [(source, target, "") for source, target in dict.fromkeys(pairwise(path))]
    return _Recorded(
        nodes=[*dict.fromkeys(path)],
        edges=edges,
        path=path,
        here=path[-1] if path else None,
        examined=len(headers) if more else None,
    )


def _draw(found: _Recorded, newest: Mapping[str, int], facts: Mapping[str, str]) -> GraphDrawing:
    names = found.nodes[:_MOST_NODES]
    edges = [edge for edge in found.edges if edge[0] in names and edge[1] in names]
    visits, taken = Counter(found.path), Counter(pairwise(found.path))
    rows = _rows(names, edges)
    widths = {
        name: max(104.0, 8.2 * len(cut(name, 26)) + 34, 6.6 * len(facts.get(name, "")) + 20)
        for name in names
    }
    breadth = max(sum(widths[n] + _APART for n in row) - _APART for row in rows)
    nodes: dict[str, DrawnNode] = {}
    for depth, row in enumerate(rows):
        x = 2 * _EDGE + (breadth - sum(widths[n] + _APART for n in row) + _APART) / 2
        for name in row:
            nodes[name] = DrawnNode(
                name=name,
                label=cut(name, 26),
                fact=facts.get(name, ""),
                x=x,
                y=8 + depth * (_TALL + _DOWN),
                width=widths[name],
                height=_TALL,
                visits=visits[name],
                is_here=name == found.here,
                is_likely=name in found.likely,
                is_exit=name in found.exits,
                seq=newest.get(name),
            )
            x += widths[name] + _APART
    width = breadth + 4 * _EDGE
    drawn: list[DrawnEdge] = []
    counted: set[tuple[str, str]] = set()
    furthest = width
    for source, target, label in edges:
        times = 0 if (source, target) in counted else taken[source, target]
        counted.add((source, target))
        path, x, y = _line(nodes[source], nodes[target])
        aside = nodes[target].y <= nodes[source].y
        if aside:
            furthest = max(furthest, x + 7.5 * len(cut(f"{label} x{times}", 26)) + 8)
        drawn.append(
            DrawnEdge(
                source=source,
                target=target,
                label=label,
                taken=times,
                path=path,
                x=x,
                y=y,
                is_aside=aside,
            )
        )
    return GraphDrawing(
        nodes=[*nodes.values()],
        edges=drawn,
        width=furthest,
        height=8 + len(rows) * (_TALL + _DOWN) - _DOWN + 8,
        is_shape=found.is_shape,
        examined=found.examined,
        hidden=len(found.nodes) - len(names),
    )


def _rows(names: Sequence[str], edges: Iterable[tuple[str, str, str]]) -> list[list[str]]:
    """The nodes by their distance from the first, edges that lead back left aside."""
    following: dict[str, list[str]] = {name: [] for name in names}
    for source, target, _ in edges:
        if source != target:
            following[source].append(target)
    depth: dict[str, int] = {}
    state: dict[str, int] = {}
    order: list[str] = []
    forward: list[tuple[str, str]] = []
    for first in names:
        stack = [(first, iter(following[first]))] if first not in state else []
        state.setdefault(first, 1)
        while stack:
            name, left = stack[-1]
            for after in left:
                if state.get(after) != 1:  # else it leads back
                    forward.append((name, after))
                if after not in state:
                    state[after] = 1
                    stack.append((after, iter(following[after])))
                    break
            else:
                state[name] = 2
                order.append(name)
                stack.pop()
    into: dict[str, list[str]] = {name: [] for name in names}
    for source, target in forward:
        into[target].append(source)
    for name in reversed(order):
        depth[name] = max((depth[one] + 1 for one in into[name] if one in depth), default=0)
    rows: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name in names:
        rows[depth[name]].append(name)
    for upper, lower in pairwise(rows):
        place = {name: at for at, name in enumerate(upper)}
        lower.sort(
            key=lambda name: min((place[one] for one in into[name] if one in place), default=0)
        )
    return rows


def _line(source: DrawnNode, target: DrawnNode) -> tuple[str, float, float]:
    """The line of an edge, and the place of its label."""
    sx, tx = source.x + source.width / 2, target.x + target.width / 2
    middle_s, middle_t = source.y + source.height / 2, target.y + target.height / 2
    right_s, right_t = source.x + source.width, target.x + target.width
    if source is target:
        curve = _curve(right_s, middle_s - 9, right_s + 32, middle_s - 26, middle_s + 26)
        return f"{curve} {right_s + 2:.0f} {middle_s + 9:.0f}", right_s + 30, middle_s
    down, up = source.y + source.height, target.y
    steps = (target.y - source.y) / (_TALL + _DOWN)
    if steps == 1:
        middle = (down + up) / 2
        curve = f"M {sx:.0f} {down:.0f} C {sx:.0f} {middle:.0f}, {tx:.0f} {middle:.0f},"
        return f"{curve} {tx:.0f} {up:.0f}", (sx + tx) / 2, middle
    if steps > 1:  # past the rows between, on the left
        side = min(source.x, target.x) - (0.7 + 0.4 * min(steps, 4)) * _EDGE
        curve = _curve(source.x, middle_s, side, middle_s, middle_t)
        place = side + 0.25 * (min(source.x, target.x) - side)
        return f"{curve} {target.x:.0f} {middle_t:.0f}", place, (middle_s + middle_t) / 2
    side = max(right_s, right_t) + 1.6 * _EDGE
    curve = _curve(right_s, middle_s, side, middle_s, middle_t)
    return f"{curve} {right_t + 2:.0f} {middle_t:.0f}", side - 12, (middle_s + middle_t) / 2


def _curve(x: float, y: float, side: float, first: float, second: float) -> str:
    """The beginning of a curve that goes out to *side* and back."""
    return f"M {x:.0f} {y:.0f} C {side:.0f} {first:.0f}, {side:.0f} {second:.0f},"
