"""Runs, forks and children: origins, families, trees, the lanes of a drawing.

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
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec

from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import status_of_run
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage
from surehold.views.documents import Document, Rows

_PARENT = "parent_run"
_MANY = 10_000
"""Headers of children that a tree looks through."""


class Origin(msgspec.Struct, frozen=True):
    """The origin of a fork."""

    run_id: str
    checkpoint_id: str
    step: int


def fork_origins(storage: Storage) -> dict[str, Origin]:
    """Return the origin of each fork in the storage, by the fork's run id."""
    origins: dict[str, Origin] = {}
    for header in storage.headers(RecordQuery(kind="fork")):
        told = header.metadata.get("forked_from")
        try:
            origins[header.run_id] = msgspec.convert(told, Origin)
        except msgspec.ValidationError:
            continue  # of another system's making
    return origins


def family_of(manager: CheckpointManager, run_id: str) -> list[str]:
    """The run, its origins and all their forks; the oldest ancestor first."""
    origins = fork_origins(manager.storage)
    family = [run_id]
    while (origin := origins.get(family[0])) is not None and origin.run_id not in family:
        family.insert(0, origin.run_id)
    for member in family:
        family += (
            fork
            for fork, origin in reversed(origins.items())
            if origin.run_id == member and fork not in family
        )
    return family


def children_of(manager: CheckpointManager, run_id: str, headers: int = 200) -> list[str]:
    """The runs that a run began, the newest first, as far as so many *headers* tell."""
    query = RecordQuery(metadata={_PARENT: run_id}, limit=headers)
    return [*dict.fromkeys(header.run_id for header in manager.storage.headers(query))]


class TreeRun(msgspec.Struct, kw_only=True):
    """A run in its place among the forks and the runs that others began."""

    run_id: str
    name: str
    status: str
    step: int
    depth: int
    forked_from: Origin | None
    begun_by: str | None = None


class Tree(Document, kw_only=True, tag="tree"):
    runs: Annotated[list[TreeRun], Rows("run")]


def read_tree(manager: CheckpointManager, run_id: str | None = None, *, limit: int = 100) -> Tree:
    """The newest runs, or the family of one, each followed by its forks and children."""
    origins, find = fork_origins(manager.storage), manager.reader.run
    if run_id is not None:
        members = map(find, family_of(manager, run_id))
        roots = [next(member for member in members if member is not None)]
    else:
        every = manager.storage.runs(RunQuery())
        roots = list(islice((run for run in every if _is_root(run, origins, manager)), limit))
    return Tree(runs=list(_rows(manager, roots, origins, 0)))


def _is_root(run: RunInfo, origins: dict[str, Origin], manager: CheckpointManager) -> bool:
    """True if the run is not a fork or child, or one of a run that was deleted."""
    origin = origins.get(run.run_id)
    before = origin.run_id if origin is not None else _parent_of(manager, run)
    return not before or manager.reader.run(before) is None


def _parent_of(manager: CheckpointManager, run: RunInfo) -> str:
    newest = manager.reader.newest(run)
    return str(newest.metadata.get(_PARENT, "")) if newest is not None else ""


def _rows(
    manager: CheckpointManager,
    runs: list[RunInfo],
    origins: dict[str, Origin],
    depth: int,
    begun_by: str | None = None,
) -> Iterator[TreeRun]:
    for run in runs:
        yield TreeRun(
            run_id=run.run_id,
            name=run.name,
            status=status_of_run(manager.storage, run),
            step=run.step,
            depth=depth,
            forked_from=origins.get(run.run_id) if depth else None,
            begun_by=begun_by,
        )
        forks = (fork for fork, origin in origins.items() if origin.run_id == run.run_id)
        found = [one for one in map(manager.reader.run, forks) if one is not None]
        # The latest place first: so no line of a drawing crosses another.
        found.sort(key=lambda one: (-origins[one.run_id].step, one.ordinal))
        yield from _rows(manager, found, origins, depth + 1)
        begun = map(manager.reader.run, reversed(children_of(manager, run.run_id, _MANY)))
        children = [one for one in begun if one is not None and one.run_id not in origins]
        yield from _rows(manager, children, origins, depth + 1, run.run_id)


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
