"""Progress of a run in its graph, as each checkpoint keeps it beside the state."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.records import digest_of
from surehold.doors.result import Spent
from surehold.engine.journal import Loaded
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


class Now(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The part of the progress that each checkpoint replaces."""

    next: str | None = None
    """The node to execute next; None if that is undecided, or the run has ended."""
    elapsed: float = 0.0
    """Seconds of execution, over all attempts."""
    floor: int = 0
    """Seq at which the run was last rewound; nested records before it do not count."""
    branch: int = 0
    """Seq after which the run began to repeat recorded steps; 0 if it never did."""
    error: str = ""
    """Text of the failure that ended the run."""
    traceback: str = ""
    """The frames of user code that the failure came from."""
    failures: int = 0
    """Failed attempts of the next node."""
    since: float = 0.0
    """The begin of the first of these attempts; 0 if none failed."""
    spent: Spent = Spent()
    """The cost of the recorded calls of all completed steps."""


class Progress(Now, kw_only=True, omit_defaults=True):
    """The progress with the path that led to it and the graph."""

    path: list[str] = []
    """Nodes executed so far."""
    shape: Shape | None = None
    """The graph as it was then."""


_encode = msgspec.json.Encoder().encode


def write_progress(
    now: Now, path: list[str], since: int, shape: Shape | None, whole: bool
) -> bytes:
    """Encode the progress for a checkpoint.

    With *whole* (a keyframe), path and shape are written in full; else only the nodes from index
    *since* on.
    """
    if not whole:
        return _encode({"now": now, "path": path[since:]})
    tree: dict[str, object] = {"now": now, "path": path}
    if shape is not None:
        tree["shape"] = shape
    return _encode(tree)


def spent_until(loaded: Loaded) -> Spent:
    """The cost of the completed steps, as a checkpoint keeps it."""
    return msgspec.convert(loaded.extra.get("now", {}).get("spent", {}), Spent)


def read_progress(loaded: Loaded) -> Progress:
    """Read the progress of a checkpoint; a `UsageError` if no graph executes its run."""
    header = loaded.header
    if not header.scope and not loaded.door.has_nodes:
        loaded.door.check("graph", header.run_id, header.name)
    extra = loaded.extra
    if "now" not in extra:
        raise ShapeError(
            f"checkpoint {header.id} was saved by hand and keeps no progress in a graph",
            hint="resume from an earlier checkpoint",
            run_id=header.run_id,
        )
    tree = {**extra["now"], "path": extra["path"], "shape": extra.get("shape")}
    return msgspec.convert(tree, Progress)


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
