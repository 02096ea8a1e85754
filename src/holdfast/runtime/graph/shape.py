"""What a graph looks like from the journal's side, and how far a run has come in it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoint.journal import Loaded
from holdfast.core.records import digest_of
from holdfast.errors import ShapeError

__all__ = ["Now", "Progress", "Shape", "difference", "read_progress", "write_progress"]


class Shape(msgspec.Struct, frozen=True):
    """Nodes and edges by name. What the functions do is not part of it."""

    nodes: tuple[str, ...]
    edges: tuple[tuple[str, str, str], ...]
    """Source, target and name, in the order in which they are tried."""
    entry: str
    exits: tuple[str, ...]
    nested: dict[str, str] = {}
    """The digests of the graphs that are nodes."""

    def digest(self) -> str:
        """A short name of this shape."""
        return digest_of(msgspec.json.encode(self, order="deterministic"))


class Now(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a run stands at a checkpoint."""

    next: str | None = None
    """The node to go on with; None if that is still to be decided, or the run has ended."""
    elapsed: float = 0.0
    """Seconds of execution, over all attempts."""
    floor: int = 0
    """Where the run was last taken back to an earlier step; nested records before it are void."""
    branch: int = 0
    """After which record the run began to do anew what it had done; 0 if it never did."""
    error: str = ""
    """What the run failed with."""


class Progress(Now, kw_only=True, omit_defaults=True):
    """Where a run stands, and how it came there: kept in each checkpoint, beside the state."""

    path: list[str] = []
    """The nodes that were executed."""
    shape: Shape | None = None
    """The graph, as it was then."""
    entry_point: str = ""
    """Where the graph is found again."""


_encode = msgspec.json.Encoder().encode


def write_progress(now: Now, path: list[str], shape: Shape | None, entry_point: str = "") -> bytes:
    """The text that a checkpoint keeps: the path it adds and, in a keyframe, the graph's shape
    and where the graph is found."""
    tree: dict[str, object] = {"now": now, "path": path}
    if shape is not None:
        tree |= {"shape": shape, "entry_point": entry_point}
    return _encode(tree)


def read_progress(loaded: Loaded) -> Progress:
    """Where a run stood at a checkpoint."""
    extra = loaded.extra
    if "now" not in extra:
        raise ShapeError(
            f"checkpoint {loaded.header.id} was not saved by a graph",
            hint="resume it with what saved it",
            run_id=loaded.header.run_id,
        )
    tree = {**extra["now"], "path": extra["path"], "shape": extra.get("shape")}
    tree["entry_point"] = extra.get("entry_point", "")
    return msgspec.convert(tree, Progress)


def difference(then: Shape | None, now: Shape, run_id: str) -> ShapeError:
    """The error of a run whose graph was another; it says which nodes and edges."""
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
