"""Forks: another run from any checkpoint; and where two runs part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.inspect import Change, changes_between
from holdfast.checkpoint.journal import CheckpointDraft, Loaded, Reader
from holdfast.checkpoint.manager import StateManager
from holdfast.core.records import Header
from holdfast.core.state import State
from holdfast.errors import NotFoundError, UsageError
from holdfast.runtime.graph import Now, read_progress, write_progress
from holdfast.storage.base import RecordQuery

__all__ = ["Parting", "edited", "fork", "part"]


async def fork(
    manager: StateManager,
    checkpoint_id: str,
    edit: Mapping[str, Any],
    run_id: str | None,
) -> State:
    """See `StateGraph.fork`."""
    made = await manager.fork_from_checkpoint(checkpoint_id, run_id, change=edited(edit))
    assert isinstance(made, State)
    return made


def edited(edit: Mapping[str, Any]) -> Callable[[Loaded, CheckpointDraft], CheckpointDraft]:
    """What makes of a fork's beginning the beginning of a graph's run, some keys changed."""

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        header = loaded.header
        if header.scope or header.status == "completed":
            what = "is of a nested scope" if header.scope else "ends its run"
            raise UsageError(
                f"checkpoint {header.id} {what}, so that there is nothing to go on with",
                hint="fork an earlier checkpoint of the run itself",
                checkpoint_id=header.id,
            )
        progress = read_progress(loaded)
        state = State.new(run_id=draft.place.run_id).with_values_of(_state(loaded)).merge(edit)
        values, natures = state.for_saving()
        decided = None if edit and header.node is not None else progress.next
        now = Now(next=decided, elapsed=progress.elapsed)
        return msgspec.structs.replace(
            draft,
            values=values,
            natures=natures,
            extra=lambda _: write_progress(
                now, progress.path, progress.shape, progress.entry_point
            ),
        )

    return change


def _state(loaded: Loaded) -> State:
    state = loaded.state()
    if not isinstance(state, State):
        raise UsageError(f"checkpoint {loaded.header.id} holds an agent's state")
    return state


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """Where two runs part. It is true if they do."""

    run_id: str
    other: str
    step: int | None
    """The first step that differs; None if none does."""
    nodes: tuple[str | None, str | None] = (None, None)
    """What each executed at that step, None if it ended before."""
    changes: tuple[Change, ...] = ()
    """What turns the state of the first run into that of the other there, where both are saved."""
    common: tuple[str, ...] = ()
    """The path up to there."""

    def __bool__(self) -> bool:
        return self.step is not None

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.run_id} and {self.other} went the same way, {len(self.common)} steps"
        first, second = (node or "(ended)" for node in self.nodes)
        way = f"{self.run_id} went to {first}, {self.other} to {second}"
        if first == second:
            way = f"both went to {first}, and left another state: " + ", ".join(
                change.path for change in self.changes
            )
        return f"they part at step {self.step}: {way}"


def part(reader: Reader, run_id: str, other: str) -> Parting:
    """See `StateGraph.compare`."""
    paths, saved = zip(*(_walked(reader, each) for each in (run_id, other)), strict=True)
    longest = max(map(len, paths))
    for step in range(longest + 1):
        nodes = tuple(path[step - 1] if 0 < step <= len(path) else None for path in paths)
        first, second = (one.get(step) for one in saved)
        changes: tuple[Change, ...] = ()
        if first is not None and second is not None:
            changes = changes_between(reader.load(first), reader.load(second))
        if nodes[0] != nodes[1] or changes:
            return Parting(
                run_id=run_id,
                other=other,
                step=step,
                nodes=(nodes[0], nodes[1]),
                changes=changes,
                common=tuple(paths[0][: max(step - 1, 0)]),
            )
    return Parting(run_id=run_id, other=other, step=None, common=tuple(paths[0]))


def _walked(reader: Reader, run_id: str) -> tuple[list[str], dict[int, Header]]:
    """A run's path, and its newest checkpoint of each step."""
    run = reader.run(run_id)
    newest = reader.newest(run) if run is not None else None
    if newest is None:
        raise NotFoundError(f"no run {run_id!r}", hint="check the spelling", run_id=run_id)
    saved: dict[int, Header] = {}
    for header in reader.storage.headers(RecordQuery(run_id=run_id, scope="")):
        saved.setdefault(header.step, header)
    return read_progress(reader.load(newest)).path, saved
