"""Results of a node: the state it leaves, or the reason why it did not complete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from surehold.core.state import Place, State, read_metadata
from surehold.engine.runs import OpenRun, StopRequests, Waiting, waiting_of
from surehold.errors import Drained, Interrupted, UsageError

NodeResult: TypeAlias = State | Mapping[str, Any] | None
NodeFunction: TypeAlias = Callable[[State], NodeResult | Awaitable[NodeResult]]


class EndRun(Exception):
    """Raised by a node to end its run before an exit point, with that status.

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
    """The state after *node* returned *result*."""
    if result is None:
        return state
    if isinstance(result, State):
        return result if result.lineage is state.lineage else state.with_values_of(result)
    if isinstance(result, Mapping):
        return state.merge(result)
    raise UsageError(
        f"node {node!r} returned {type(result).__name__}",
        hint="return a State, a dict of what changed, or None",
    )


def placed(place: Place, kind: str, status: str, error: str) -> Place:
    """*place* for a checkpoint of that kind and status."""
    metadata = place.metadata
    if error:
        metadata = read_metadata({**metadata, "error": error.partition(":")[0]})
    return msgspec.structs.replace(place, kind=kind, status=status, metadata=metadata)


def waiting_signal(held: OpenRun, error: BaseException) -> BaseException:
    """The signal that lists what the run waits for, or a refused answer's error."""
    refused = held.ledger.refused
    if refused is not None:
        return refused
    waiting = tuple(waiting_of(held.run_id, note) for note in held.ledger.waiting())
    if not waiting:
        return error
    what = ", ".join(one.id for one in waiting)
    return Interrupted(
        f"run {held.run_id!r} waits for: {what}", run_id=held.run_id, waiting=waiting
    )


def waiting_facts(signal: BaseException) -> list[dict[str, Any]]:
    """The open questions and effects of a waiting run, as an event tells them."""
    waiting: Sequence[Waiting] = getattr(signal, "waiting", ())
    return [
        {"id": one.id, "kind": one.kind, "name": one.name, "question": one.question}
        for one in waiting
    ]


def drained(stop: StopRequests, run_id: str, node: str, *, saved: bool) -> Drained:
    """The signal of a run that was asked to stop before it executed *node*."""
    what = "its state is saved" if saved else "nothing was saved: checkpointing is off"
    message = f"run {run_id!r} was asked to stop at node {node!r}; {what}"
    hint = "start the program again to resume it" if saved else ""
    return stop.signal(message, hint=hint, run_id=run_id, node=node, saved=saved)


def uncancel() -> None:
    """Take back a cancellation by Surehold: the task does not count as cancelled."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()


def changed_keys(before: State, after: State) -> Sequence[str]:
    """The keys that a node set or removed."""
    old, new = before.for_saving()[0], after.for_saving()[0]
    kept = [key for key in new if key not in old or old[key] is not new[key]]
    return [*kept, *(key for key in old if key not in new)]
