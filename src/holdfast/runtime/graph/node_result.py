"""What a node comes to: the state it leaves, or the way in which it did not end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.checkpoint.effects import Session, waiting_of
from holdfast.core.state import Place, State, read_metadata
from holdfast.errors import (
    BudgetError,
    ConflictError,
    Drained,
    InDoubtError,
    Interrupted,
    ShapeError,
    StorageError,
    UsageError,
)
from holdfast.runtime.graph.edges import Edge

__all__ = [
    "PASS_THROUGH_ERRORS",
    "EndRun",
    "NodeFunction",
    "NodeResult",
    "applied",
    "changed_keys",
    "drained",
    "edge_facts",
    "parked",
    "placed",
    "uncancel",
]

NodeResult: TypeAlias = State | Mapping[str, Any] | None
NodeFunction: TypeAlias = Callable[[State], NodeResult | Awaitable[NodeResult]]

PASS_THROUGH_ERRORS = (BudgetError, ConflictError, InDoubtError, ShapeError, StorageError)
"""Errors that say what is wrong by themselves; any other is told as a failure of its node."""


class EndRun(Exception):
    """Raised by a node that ends its run short of an exit point: how, and what it leaves behind.

    The state that the node began with is saved with *leaves* merged into it; the node is executed
    again when the run is resumed.
    """

    def __init__(
        self,
        status: str,
        *,
        leaves: Mapping[str, Any] | None = None,
        error: str = "",
        kind: str = "recovery",
        save: bool = True,
    ) -> None:
        super().__init__(error or status)
        self.status = status
        self.leaves = leaves or {}
        self.error = error
        self.kind = kind
        self.save = save
        self.state: State | None = None
        """The state that was saved."""


def applied(state: State, result: Any, node: str) -> State:
    """The state after a node that returned *result*."""
    if result is None:
        return state
    if isinstance(result, State):
        return result if result.lineage is state.lineage else state.with_values_of(result)
    if isinstance(result, Mapping):
        return state.merge(result)
    raise UsageError(
        f"node {node!r} returned a {type(result).__name__}",
        hint="return a State, a dict of what changed, or None",
    )


def placed(place: Place, kind: str, status: str, error: str) -> Place:
    """The place of a checkpoint of that kind."""
    metadata = place.metadata
    if error:
        metadata = read_metadata({**metadata, "error": error.partition(":")[0]})
    return msgspec.structs.replace(place, kind=kind, status=status, metadata=metadata)


def parked(session: Session, error: Interrupted) -> BaseException:
    """What tells the caller that the run waits, and for what; or that an answer was refused."""
    refused = session.ledger.refused
    if refused is not None:
        return refused
    waiting = tuple(waiting_of(session.run_id, note) for note in session.ledger.waiting())
    if not waiting:
        return error
    what = ", ".join(one.id for one in waiting)
    return Interrupted(
        f"run {session.run_id!r} waits for: {what}", run_id=session.run_id, waiting=waiting
    )


def drained(run_id: str, node: str, *, saved: bool) -> Drained:
    """What tells the caller that the run was asked to stop; *node* is the one to go on with."""
    what = "its state is saved" if saved else "nothing was saved, for checkpoints are off"
    return Drained(
        f"run {run_id!r} was asked to stop at node {node!r}; {what}",
        run_id=run_id,
        node=node,
        saved=saved,
    )


def uncancel() -> None:
    """Take a cancellation of our own back, so that the caller's task is not seen as cancelled."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def changed_keys(before: State, after: State) -> Sequence[str]:
    """The keys that a node set or took away."""
    old, new = before.for_saving()[0], after.for_saving()[0]
    kept = [key for key in new if key not in old or old[key] is not new[key]]
    return [*kept, *(key for key in old if key not in new)]


def edge_facts(edge: Edge, index: int) -> dict[str, Any]:
    """What events say of an edge."""
    return {
        "from": edge.source,
        "to": edge.target,
        "edge_index": index,
        "edge_name": edge.name,
        "has_predicate": edge.predicate is not None,
    }
