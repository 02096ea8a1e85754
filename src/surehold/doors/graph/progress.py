"""Progress of a run in its graph, as each checkpoint keeps it beside the state."""

from __future__ import annotations

import msgspec

from surehold.doors.graph.compiled import Shape
from surehold.doors.result import Spent
from surehold.engine.journal import Loaded
from surehold.errors import ShapeError


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
    failures: int = 0
    """Failed attempts of the next node."""
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
