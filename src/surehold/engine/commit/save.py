"""Saving: hooks, the commit, the failure policy, retention."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from surehold.core.records import Header, check_run_id
from surehold.core.state import AgentState, State, indexed_metadata, read_metadata
from surehold.core.values import FrozenDict, with_changes
from surehold.engine.commit.face import Face
from surehold.engine.commit.steps import Commit, Fire, Pause, Steps, Work
from surehold.engine.hooks import HookEvent, HookResult, pre_outcome
from surehold.engine.journal import (
    CheckpointDraft,
    Note,
    Outcome,
    Request,
    Saveable,
    draft_of,
    saved,
    state_of,
)
from surehold.engine.retention import Erasure
from surehold.errors import ConflictError, StorageError, SureholdError
from surehold.storage.base import RunQuery

logger = logging.getLogger("surehold.checkpoint")

WARNED = "warned"
"""Fact of the error of a note that was not stored, where failures are only warned of."""
_RETRIES = 5
_FIRST_PAUSE = 0.05


def save_state(face: Face, state: Saveable, *, force: bool = False) -> Steps[str]:
    """Save a state; returns the checkpoint's id, "" if a failure was only warned of."""
    of_agent = isinstance(state, AgentState)
    if of_agent:
        yield from _join(face, state)
    header = yield from save_draft(face, draft_of(state), state, force=force)
    if header is None:
        return ""
    if of_agent:
        saved(state, header)
        face.agent_runs.reached(state, header)
    return header.id


def _join(face: Face, state: Saveable) -> Steps[None]:
    """Find the run of an agent's state; warn of a run begun beside an unfinished one."""
    runs = face.agent_runs
    if isinstance(state, State) or state.run_id is not None or runs.knows(state.agent_id):
        runs.join(state)
        return
    agent_id = check_run_id(state.agent_id, "agent_id")
    query = RunQuery(name=agent_id, not_status="completed", limit=1)
    try:
        unfinished = yield Work(lambda: list(face.storage.runs(query)))
    except SureholdError:
        return  # the save meets the same medium, and its policy decides
    for run in unfinished:
        logger.warning(
            "agent %s begins a run, and its run %s is unfinished at step %d:"
            " resume_from_latest(%r) continues it",
            agent_id,
            run.run_id,
            run.step,
            agent_id,
        )


def save_draft(
    face: Face,
    draft: CheckpointDraft,
    state: Saveable | None = None,
    *,
    force: bool = False,
    notes: Sequence[Note] = (),
    notes_for: Callable[[Header], Sequence[Note]] | None = None,
    new_run: bool = False,
    asked: bool = False,
    epoch: int | None = None,
) -> Steps[Header | None]:
    """Save a draft and notes in one commit; None if a failure was only warned of.

    *notes_for* adds notes when the checkpoint's turn has come, and may be asked again.
    Hooks are shown *state*, or one made from the draft, before and after; not before if they were
    *asked* already. With *new_run* the run must not exist yet, and retention drops nothing: what
    it was forked from stays until someone saves. *epoch* is that of the lease of whoever holds
    the run.
    """
    started = time.perf_counter()
    shown = state if asked else None
    if face.repairer.untold:
        yield from tell_repairs(face)
    if face.hooks is not None and not asked:
        draft, shown = yield from ask_hooks(face, draft, state)
    run_id = draft.place.run_id
    if face.missed and run_id in face.missed:
        missed = {"saves": face.missed[run_id]}
        notes = (*notes, Note(kind="missed", content={}, metadata=missed))
    retention = face.retention
    request = Request(
        run_id=run_id,
        draft=draft,
        force=force,
        notes=notes,
        notes_for=notes_for,
        hide=retention.hide if retention.active and not new_run else None,
        new_run=new_run,
        epoch=epoch,
    )
    stored: Outcome | None
    try:
        stored = yield Commit(request)
        if stored.error is not None:
            raise stored.error
    except SureholdError as error:
        stored = yield from _failed(face, request, error)
        if stored is None:
            return None
    header = stored.header
    assert header is not None
    seconds = time.perf_counter() - started
    if face.counts_saves:
        face.count_save(draft.place)
    if stored.written:
        face.metrics.saved(seconds, header.size, header.stored)
        if face.missed:
            face.missed.pop(run_id, None)
        if retention.active:
            yield from _retain(face, stored, epoch)
    if shown is not None and face.hears(HookEvent.POST_CHECKPOINT_SAVE):
        data = {**header_data(header), "state": shown, "duration_ms": seconds * 1000}
        yield from fire(face, HookEvent.POST_CHECKPOINT_SAVE, header.name, data)
    return header


def ask_hooks(
    face: Face, draft: CheckpointDraft, state: Saveable | None = None
) -> Steps[tuple[CheckpointDraft, Saveable | None]]:
    """Let PRE hooks refuse or replace what is saved; return the draft and their view."""
    before = face.hears(HookEvent.PRE_CHECKPOINT_SAVE)
    if not before and not face.hears(HookEvent.POST_CHECKPOINT_SAVE):
        return draft, None
    # Hooks get a state of their own: what they do to it must not reach the live one.
    shown = copy.deepcopy(state) if state is not None else state_of(draft)
    if not before:
        return draft, shown
    place = draft.place
    data = {
        "agent_id": place.name,
        "run_id": place.run_id,
        "step_number": place.step,
        "status": place.status,
        "timestamp": datetime.now(UTC),
        "state": shown,
    }
    results = yield from fire(face, HookEvent.PRE_CHECKPOINT_SAVE, place.name, data)
    outcome = pre_outcome(shown, results)
    if outcome.veto is not None:
        face.metrics.save_failed(vetoed=True)
    new = outcome.unwrap(run_id=place.run_id)
    if new is shown and not _was_changed(shown, draft, state, results):
        return draft, shown
    return _replaced(draft, new), new


def _was_changed(
    shown: Saveable,
    draft: CheckpointDraft,
    state: Saveable | None,
    results: Sequence[HookResult],
) -> bool:
    """Return True if hooks changed the state in place, and none of them failed."""
    if not isinstance(shown, AgentState):
        return False
    before = state if state is not None else state_of(draft)
    if state is None and isinstance(before, AgentState):
        before.timestamp = shown.timestamp  # each is made now
    return shown != before and all(result.success for result in results)


def _replaced(old: CheckpointDraft, state: Saveable) -> CheckpointDraft:
    """The draft of a state that a hook returned; run, step and lineage stay."""
    new = draft_of(state, new_run_id=old.place.run_id)
    values, metadata, tags = new.values, new.place.metadata, new.place.tags
    if isinstance(state, AgentState):
        metadata, tags = _merged_metadata(old, metadata), old.place.tags
        if "timestamp" not in old.values:  # the checkpoint has its own
            values = {key: value for key, value in values.items() if key != "timestamp"}
    place = msgspec.structs.replace(old.place, metadata=metadata, tags=tags)
    return msgspec.structs.replace(old, place=place, values=values, natures=new.natures)


def _merged_metadata(old: CheckpointDraft, new: Mapping[str, Any]) -> FrozenDict:
    """The metadata of the run with what a hook changed in that of the agent's state."""
    before = state_of(old)
    assert isinstance(before, AgentState)
    return read_metadata(with_changes(old.place.metadata, indexed_metadata(before.metadata), new))


def _failed(face: Face, request: Request, error: SureholdError) -> Steps[Outcome | None]:
    """Apply the policy for failed saves: raise, warn (None), or try again."""
    pause = _FIRST_PAUSE
    for attempt in range(_RETRIES + 1):
        if request.draft is not None:
            face.metrics.save_failed()
        if not isinstance(error, StorageError):
            raise error
        face.retention.forget_all()  # what is visible now is not known
        if face.settings.on_save_failure == "warn":
            if request.draft is not None:
                face.save_missed(request.run_id)
                logger.warning("run %s: a checkpoint was not saved: %s", request.run_id, error)
            return None
        if face.settings.on_save_failure == "fail" or not error.retryable or attempt == _RETRIES:
            raise error
        yield Pause(pause)
        pause *= 2
        try:
            stored: Outcome = yield Commit(request)
            if stored.error is None:
                return stored
            error = stored.error
        except SureholdError as again:
            error = again
    raise AssertionError("unreachable")


def append_notes(
    face: Face,
    run_id: str,
    notes: Sequence[Note],
    head: int | None = None,
    epoch: int | None = None,
) -> Steps[None]:
    """Append notes in one batch, or raise; with ``warn``, the error says `WARNED`.

    With *head*, only if that is the run's newest record, else a `ConflictError`. *epoch* is that
    of the lease of whoever holds the run.
    """
    request = Request(run_id=run_id, notes=notes, head=head, epoch=epoch)
    try:
        stored: Outcome = yield Commit(request)
        if stored.error is not None:
            raise stored.error
    except SureholdError as error:
        if (yield from _failed(face, request, error)) is None:
            kind = notes[-1].kind
            logger.warning("run %s: its newest %s was not stored: %s", run_id, kind, error)
            error.facts[WARNED] = True
            raise


def _retain(face: Face, stored: Outcome, epoch: int | None) -> Steps[None]:
    """Count what retention hid with a save, and free the space now and then."""
    if stored.hidden:
        face.metrics.pruned(sum(map(len, stored.hidden.values())))
    face.retention.saved(stored)
    for run_id in face.retention.runs_to_erase():
        saved = stored.header is not None and run_id == stored.header.run_id
        try:
            yield from erase(face, run_id, epoch if saved else None)
        except SureholdError as error:
            # The save that led to it is stored, whatever becomes of this.
            logger.warning("run %s: what retention dropped was not freed: %s", run_id, error)


def erase(face: Face, run_id: str, epoch: int | None = None) -> Steps[int]:
    """Free what was hidden: a note that names it, then the records, or an empty run.

    Returns the number of bytes freed. An error here never counts as a failed save.
    """
    for _ in range(_RETRIES + 1):
        if (yield Work(lambda: face.retention.is_empty(run_id))):
            return (yield Work(partial(_delete_empty, face, run_id)))  # type: ignore[no-any-return]
        plan: Erasure | None = yield Work(lambda: face.retention.plan_erasure(run_id))
        if plan is None:
            return 0
        stored: Outcome = yield Commit(plan.request(run_id, epoch))
        if isinstance(stored.error, ConflictError):
            continue  # the run was continued meanwhile, perhaps from what was to go
        if stored.error is not None:
            raise stored.error
        yield Work(partial(face.retention.erase, run_id, plan))
        face.metrics.freed(plan.stored)
        return plan.stored
    return 0


def _delete_empty(face: Face, run_id: str) -> int:
    run = face.reader.run(run_id)
    face.journal.invalidate(run_id)
    face.storage.delete(run_id)
    stored = run.stored if run is not None else 0
    face.metrics.freed(stored)
    return stored


def tell_repairs(face: Face) -> Steps[None]:
    """Fire the hooks for repairs that happened meanwhile."""
    while face.repairer.untold:
        data = face.repairer.untold.pop(0)
        yield from fire(face, HookEvent.POST_REPAIR, data["agent_id"], data)


def fire(
    face: Face, event: HookEvent, agent_id: str, data: Mapping[str, Any]
) -> Steps[list[HookResult]]:
    """Fire an event; a veto of anything but a save is raised."""
    if not face.hears(event):
        return []
    results: list[HookResult] = yield Fire(event, agent_id, data)
    failed = sum(not result.success for result in results)
    if failed:
        face.metrics.hook_failed(failed)
    if event.is_pre and event is not HookEvent.PRE_CHECKPOINT_SAVE:
        pre_outcome(None, results).unwrap(event.rpartition("_")[2], run_id=data["run_id"])
    return results


def header_data(header: Header) -> dict[str, Any]:
    """The facts about a checkpoint that hooks receive."""
    return {
        "agent_id": header.name,
        "run_id": header.run_id,
        "checkpoint_id": header.id,
        "step_number": header.step,
        "status": header.status,
        "timestamp": header.saved_at,
        "kind": header.kind,
        "size": header.size,
        "stored": header.stored,
    }
