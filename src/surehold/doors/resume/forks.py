"""Forks of a graph's run, and the first difference between two runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.core.state import State, read_metadata
from surehold.core.values import Nature
from surehold.doors.resume.progress import Now, read_progress, write_progress
from surehold.doors.resume.target import find_run, find_target
from surehold.engine.journal import (
    Change,
    CheckpointDraft,
    CheckpointMetadata,
    Loaded,
    Reader,
    changes_between,
)
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.errors import UsageError
from surehold.storage.base import RecordQuery


async def fork(
    manager: AsyncCheckpointManager,
    checkpoint_id: str,
    edit: Mapping[str, Any],
    run_id: str | None,
    metadata: Mapping[str, Any] | None = None,
) -> State:
    """See `StateGraph.fork`; *metadata* is added to the fork's first checkpoint."""
    change = edited(edit, metadata)
    made = await manager.fork_from_checkpoint(checkpoint_id, run_id, change=change)
    assert isinstance(made, State)
    return made


def fork_with(
    manager: CheckpointManager,
    header: Header,
    edit: Mapping[str, Any],
    run_id: str | None = None,
    before: str | None = None,
) -> CheckpointMetadata:
    """Fork a run of any door from a checkpoint, with other values for some keys.

    With *before*, from where it made that recorded call.
    """
    of_graph = edited(edit)

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        if loaded.door.has_nodes:  # a graph decides its next node again
            return of_graph(loaded, draft)
        if loaded.door.kind == "program" and before is None:
            run, call = header.run_id, header.step + 1
            raise UsageError(
                f"run {run!r} is of a recorded program: its fork would have no recorded call",
                hint=f"surehold replay {run} --from {call} -- COMMAND has the calls before {call}",
                run_id=run,
            )
        values = {**draft.values, **edit}
        natures = {**draft.natures, **dict.fromkeys(edit, Nature.LIVE)}
        return msgspec.structs.replace(draft, values=values, natures=natures)

    made = manager.fork_from_checkpoint(header.id, run_id, change=change, before=before)
    new = manager.latest(str(made.run_id))
    assert new is not None
    return new


def edited(
    edit: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> Callable[[Loaded, CheckpointDraft], CheckpointDraft]:
    """A change that makes a fork start a graph's run, with the values of *edit*.

    The fork counts as interrupted until it is resumed.
    """

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        header = loaded.header
        if header.scope or header.status == "completed":
            what = "is of a nested scope" if header.scope else "ends its run"
            raise UsageError(
                f"checkpoint {header.id} {what}, and nothing follows it",
                hint="fork an earlier checkpoint of the run itself",
                checkpoint_id=header.id,
            )
        progress, saved = read_progress(loaded), loaded.state()
        if not isinstance(saved, State):
            raise UsageError(f"checkpoint {header.id} holds an agent's state")
        state = State.new(run_id=draft.place.run_id).with_values_of(saved).merge(edit)
        values, natures = state.for_saving()
        decided = None if edit and header.node is not None else progress.next
        now = Now(next=decided, elapsed=progress.elapsed)
        told = read_metadata({**draft.place.metadata, **(metadata or {})})
        place = msgspec.structs.replace(draft.place, status="interrupted", metadata=told)
        return msgspec.structs.replace(
            draft,
            place=place,
            values=values,
            natures=natures,
            extra=functools.partial(write_progress, now, progress.path, 0, progress.shape),
        )

    return change


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between two runs. It is true if there is one."""

    run_id: str
    other: str
    step: int | None
    """The first step that differs; None if none does."""
    nodes: tuple[str | None, str | None] = (None, None)
    """The node that each executed at that step; None if it had ended."""
    changes: tuple[Change, ...] = ()
    """Changes from the state of the first run to that of the other, where both are saved."""
    common: tuple[str, ...] = ()
    """The common path before that step."""

    def __bool__(self) -> bool:
        return self.step is not None

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.run_id} and {self.other} are equal in {len(self.common)} steps"
        first, second = (node or "(ended)" for node in self.nodes)
        what = f"{self.run_id} executed {first}, {self.other} {second}"
        if first == second:
            paths = ", ".join(change.path for change in self.changes)
            what = f"both executed {first}, and left other values: {paths}"
        return f"they differ at step {self.step}: {what}"


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
    """The path of a run, and its newest checkpoint of each step."""
    newest = find_target(reader, find_run(reader, run_id)).newest
    run_id = newest.run_id
    saved: dict[int, Header] = {}
    for header in reader.storage.headers(RecordQuery(run_id=run_id, scope="")):
        saved.setdefault(header.step, header)
    return read_progress(reader.load(newest)).path, saved
