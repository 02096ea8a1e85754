"""Moving queued runs to another version of their code, if they fit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from surehold.core.context import during
from surehold.core.policy import QUEUED, EntryState, QueueEntry, Submission
from surehold.core.records import Door
from surehold.core.state import Place, read_metadata
from surehold.engine.commit import save_draft
from surehold.engine.journal import Note
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import draft_at
from surehold.engine.runs.positions import ONLY_REPLAYED
from surehold.errors import LeaseHeldError, UsageError
from surehold.executors.driving import drive
from surehold.executors.serving import served_by
from surehold.storage.base import Leasing, this_process
from surehold.storage.memory import MemoryStorage
from surehold.storage.queueing import EntryQuery, check_queues

MOVED = "moved"
"""The kind of the checkpoint from which on a run is of another version."""


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A run of the old version, and what became of it."""

    run_id: str
    state: EntryState
    outcome: Literal["moved", "fits", "unfit", "held"]
    """``fits`` if it was only looked at; ``held`` by a process that executes it."""
    problem: str = ""


def move_runs(
    old: str,
    new: str,
    *,
    manager: CheckpointManager,
    states: tuple[EntryState, ...] = ("ready", "waiting"),
    queue: str | None = None,
    check: bool = True,
    dry_run: bool = False,
    by: str = "",
) -> Iterator[Move]:
    """Have the queued runs of *old* executed by *new*, ``module:name@version`` both.

    With *check* a copy of each run is replayed by the new code until its first call that is not
    recorded; runs that do not fit, and runs that a worker is executing, stay unchanged. New code
    within a workflow goes behind `patched`.
    """
    entry_point = _known(new)
    if old == new:
        raise UsageError(f"the runs are of {old} already", hint="name two versions")
    kept = check_queues(manager.storage)
    found = [
        entry
        for state in (*states, "running")
        for entry in kept.entries(EntryQuery(queue=queue, state=state))
        if entry.target == old
    ]
    for entry in found:
        if entry.state == "running":
            yield Move(run_id=entry.run_id, state=entry.state, outcome="held")
            continue
        problem = _problem(manager, entry, new, entry_point) if check else ""
        if problem or dry_run:
            outcome: Literal["unfit", "fits"] = "unfit" if problem else "fits"
            yield Move(run_id=entry.run_id, state=entry.state, outcome=outcome, problem=problem)
            continue
        moved = _held_and_moved(manager, entry, new, by)
        outcome_now: Literal["moved", "held"] = "moved" if moved else "held"
        yield Move(run_id=entry.run_id, state=entry.state, outcome=outcome_now)


def _known(target: str) -> str:
    """The entry point of a target that is there, or a `UsageError`."""
    entry_point, _, version = target.rpartition("@")
    if not entry_point or not version.isdigit():
        raise UsageError(f"{target!r} is not a version of code", hint="give MODULE:NAME@VERSION")
    there = sorted({one.target for one in served_by([entry_point])})
    if target not in there:
        raise UsageError(f"there is no {target}", hint=f"there is {', '.join(there)}")
    return entry_point


def _problem(manager: CheckpointManager, entry: QueueEntry, new: str, entry_point: str) -> str:
    """The reason why the new code does not fit the run; empty if it does."""
    with MemoryStorage() as memory:
        manager.copy_run(entry.run_id, memory)
        copied = CheckpointManager.on(memory, manager.settings)
        _move(copied, entry, new, "")
        with during(ONLY_REPLAYED, True):
            driven = drive(
                entry.run_id,
                storage=memory,
                entry_point=entry_point,
                hook_manager=manager.hook_manager,
            )
    return driven.error if driven.outcome in ("unfit", "failed") else ""


def _held_and_moved(manager: CheckpointManager, entry: QueueEntry, new: str, by: str) -> bool:
    storage = manager.storage
    assert isinstance(storage, Leasing)
    try:
        lease = storage.take_lease(entry.run_id, this_process(), now=time.time(), ttl=LEASE_SECONDS)
    except LeaseHeldError:
        return False
    try:
        _move(manager, entry, new, by)
    finally:
        storage.release_lease(lease)
    return True


def _move(manager: CheckpointManager, entry: QueueEntry, new: str, by: str) -> None:
    """Append a checkpoint of the new version and the submission of its code."""
    entry_point, _, version = new.rpartition("@")
    told = Submission(
        queue=entry.queue, target=new, priority=entry.priority, key=entry.key, due=entry.due
    )
    metadata = {QUEUED: msgspec.to_builtins(told)} | ({"by": by} if by else {})
    note = Note(kind=QUEUED, content={}, metadata=metadata)
    reader = manager.reader
    newest = reader.newest_of(entry.run_id)
    if newest is None or reader.door(newest).kind != "function":  # that have no version in them
        manager.append_notes(entry.run_id, (note,))
        return
    state = reader.load(newest).graph_state()
    place = Place(
        run_id=entry.run_id,
        name=newest.name,
        step=newest.step,
        kind=MOVED,
        status=newest.status,
        metadata=read_metadata(dict(newest.metadata)),
    )
    draft = draft_at(
        place,
        state.to_dict(),
        state.lineage,
        door=Door("function", int(version), entry_point),
        schema=0,
    )
    manager.perform(save_draft(manager.face, draft, force=True, notes=(note,)))
