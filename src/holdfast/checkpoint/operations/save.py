"""Saving: hooks, the commit, what a failure does, retention; the ground of every operation."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.crypto import Keys, Sealer
from holdfast.checkpoint.hooks import HookEvent, HookManager, HookResult, pre_outcome
from holdfast.checkpoint.inspect import Metrics
from holdfast.checkpoint.journal import (
    CheckpointDraft,
    Journal,
    Note,
    Outcome,
    Request,
    Saveable,
    draft_of,
    saved,
    state_of,
)
from holdfast.checkpoint.manager import Commit, Fire, Pause, Steps, Work
from holdfast.checkpoint.operations.agent_runs import FreshStateRuns
from holdfast.checkpoint.repair import OnCorrupt, Repairer
from holdfast.checkpoint.retention import Erasure, RetentionManager
from holdfast.core.policy import Clockwork, Rules, Triggers
from holdfast.core.records import Header
from holdfast.core.state import AgentState
from holdfast.errors import ConflictError, HoldfastError, StorageError, UsageError
from holdfast.storage.base import Storage

__all__ = ["OnSaveFailure", "Saving", "header_data"]

logger = logging.getLogger("holdfast.checkpoint")

OnSaveFailure = Literal["fail", "warn", "retry"]
_RETRIES = 5
_FIRST_PAUSE = 0.05


class Saving:
    """The steps of a save, over one storage."""

    def __init__(
        self,
        storage: Storage,
        *,
        hooks: HookManager | None,
        triggers: Triggers,
        rules: Rules,
        keys: Keys | None,
        on_save_failure: OnSaveFailure,
        on_corrupt: OnCorrupt = "fail",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if on_save_failure not in ("fail", "warn", "retry"):
            raise UsageError(
                f"on_save_failure is {on_save_failure!r}", hint="one of 'fail', 'warn', 'retry'"
            )
        self.storage = storage
        self.hooks = hooks
        self.metrics = Metrics()
        self.journal = Journal(storage, Sealer(storage, keys), clock=clock)
        self.reader = self.journal.reader
        self.retention = RetentionManager(self.journal, rules, clock)
        self._triggers = triggers
        self._clocks: dict[str, Clockwork] = {}
        self._on_save_failure = on_save_failure
        self._agent_runs = FreshStateRuns()
        self.repairer = Repairer(self, on_corrupt, clock)
        self._missed: dict[str, int] = {}
        self._clock = clock

    @property
    def triggers(self) -> Triggers:
        """What makes a save due, for those who ask `should_checkpoint`."""
        return self._triggers

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Whether a trigger says that it is time to save."""
        now = time.monotonic() if current_time is None else current_time
        clock = self._clocks.get(name_or_run_id)
        if clock is None:
            clock = self._clocks[name_or_run_id] = Clockwork(self._triggers)
        return clock.due(current_step, now) is not None

    def _count_save(self, place: Any) -> None:
        """Triggers count from here, whether they are asked by run or by name."""
        now = time.monotonic()
        for key in (place.run_id, place.name):
            if key and not self._triggers.every_step:
                clock = self._clocks.setdefault(key, Clockwork(self._triggers))
                clock.saved(place.step, now)

    def save(self, state: Saveable, *, force: bool = False) -> Steps[str | None]:
        """Save a state; gives the checkpoint's id, or None if a failure was only warned of."""
        self._agent_runs.join(state)
        draft = draft_of(state)
        header = yield from self.save_draft(draft, state, force=force)
        if header is None:
            return None
        saved(state, header)
        self._agent_runs.saved(state, header)
        return header.id

    def save_draft(
        self,
        draft: CheckpointDraft,
        state: Saveable | None = None,
        *,
        force: bool = False,
        notes: tuple[Note, ...] = (),
    ) -> Steps[Header | None]:
        """Hooks, append, hooks, retention. *state* is what hooks are shown; made if not given."""
        yield from self._tell_repairs()
        started = time.perf_counter()
        shown: Saveable | None = None
        if self._hears(HookEvent.PRE_CHECKPOINT_SAVE, HookEvent.POST_CHECKPOINT_SAVE):
            # Hooks get a state of their own: what they do to it must not reach the live one.
            shown = copy.deepcopy(state) if state is not None else state_of(draft)
        if shown is not None and self._hears(HookEvent.PRE_CHECKPOINT_SAVE):
            data = _save_data(draft, shown)
            results = yield from self._fire(HookEvent.PRE_CHECKPOINT_SAVE, draft.place.name, data)
            outcome = pre_outcome(shown, results)
            if outcome.veto is not None:
                self.metrics.save_failed(vetoed=True)
            new = outcome.unwrap(run_id=draft.place.run_id)
            if new is not shown or _was_changed(shown, draft, state, results):
                draft, shown = _replaced(draft, new), new
        request = Request(
            run_id=draft.place.run_id,
            draft=draft,
            force=force,
            notes=(*notes, *self._notes_of_missed(draft.place.run_id)),
            hide=self.retention.hide if self.retention.active else None,
        )
        stored = yield from self._commit(request)
        if stored is None:
            return None
        if stored.written:
            self._missed.pop(request.run_id, None)
        header = stored.header
        assert header is not None
        seconds = time.perf_counter() - started
        self._count_save(draft.place)
        if stored.written:
            self.metrics.saved(seconds, logical=header.size, stored=header.stored)
            if stored.hidden:
                self.metrics.pruned(sum(map(len, stored.hidden.values())))
            self.retention.saved(stored)
            for run_id in self.retention.runs_to_erase() if self.retention.active else ():
                yield from self._free(run_id)
        if self._hears(HookEvent.POST_CHECKPOINT_SAVE):
            data = {**header_data(header), "state": shown, "duration_ms": seconds * 1000}
            yield from self._fire(HookEvent.POST_CHECKPOINT_SAVE, header.name, data)
        return header

    def _notes_of_missed(self, run_id: str) -> tuple[Note, ...]:
        """What the next save that succeeds tells of those that did not, and were only warned of."""
        if run_id not in self._missed:
            return ()
        return (Note(kind="missed", content={}, metadata={"saves": self._missed[run_id]}),)

    def append_notes(
        self, run_id: str, notes: Sequence[Note], head: int | None = None
    ) -> Steps[None]:
        """Append notes in one batch; a failure is raised whatever the policy for saves.

        With *head*, only if that is the run's newest record, else a `ConflictError`.
        """
        if (yield from self._commit(Request(run_id=run_id, notes=notes, head=head))) is None:
            raise StorageError(
                f"run {run_id!r}: a {notes[0].kind} note could not be stored", run_id=run_id
            )

    def _commit(self, request: Request) -> Steps[Outcome | None]:
        """Commit, and do about a failure of the medium what the policy says."""
        pause = _FIRST_PAUSE
        for attempt in range(_RETRIES + 1):
            try:
                outcome: Outcome = yield Commit(request)
                if outcome.error is not None:
                    raise outcome.error
                return outcome
            except StorageError as error:
                self.metrics.save_failed()
                self.retention.forget_all()  # what is visible now is not known
                last = attempt == _RETRIES
                if self._on_save_failure == "retry" and error.retryable and not last:
                    yield Pause(pause)
                    pause *= 2
                    continue
                if self._on_save_failure == "warn":
                    logger.warning("run %s: a checkpoint was not saved: %s", request.run_id, error)
                    self._missed[request.run_id] = self._missed.get(request.run_id, 0) + 1
                    return None
                raise
            except HoldfastError:
                self.metrics.save_failed()
                raise
        raise AssertionError("unreachable")

    def _free(self, run_id: str) -> Steps[None]:
        """Free what was hidden. The save that led to it is stored, whatever becomes of this."""
        try:
            yield from self._erase(run_id)
        except HoldfastError as error:
            logger.warning("run %s: what retention dropped was not freed: %s", run_id, error)

    def _erase(self, run_id: str) -> Steps[int]:
        """Free what was hidden: a note that says so, then the records; an empty run goes whole.

        Gives how many bytes that were stored.
        """
        for _ in range(_RETRIES + 1):
            if (yield Work(lambda: self.retention.is_empty(run_id))):
                return (yield Work(lambda: self._delete_empty(run_id)))  # type: ignore[no-any-return]
            plan: Erasure | None = yield Work(lambda: self.retention.plan_erasure(run_id))
            if plan is None:
                return 0
            try:
                if (yield from self._commit(plan.request(run_id))) is None:
                    return 0
            except ConflictError:
                continue  # the run went on meanwhile, perhaps from what was to go
            yield Work(partial(self.retention.erase, run_id, plan))
            self.metrics.freed(plan.stored)
            return plan.stored
        return 0

    def _delete_empty(self, run_id: str) -> int:
        run = self.reader.run(run_id)
        self.journal.invalidate(run_id)
        self.storage.delete(run_id)
        stored = run.stored if run is not None else 0
        self.metrics.freed(stored)
        return stored

    def _tell_repairs(self) -> Steps[None]:
        """Tell hooks of what was repaired meanwhile."""
        while self.repairer.untold:
            data = self.repairer.untold.pop(0)
            yield from self._fire(HookEvent.POST_REPAIR, data["agent_id"], data)

    def _hears(self, *events: HookEvent) -> bool:
        return self.hooks is not None and any(self.hooks.has(event) for event in events)

    def _fire(
        self, event: HookEvent, agent_id: str, data: Mapping[str, Any]
    ) -> Steps[list[HookResult]]:
        if not self._hears(event):
            return []
        results: list[HookResult] = yield Fire(event, agent_id, data)
        failed = sum(not result.success for result in results)
        if failed:
            self.metrics.hook_failed(failed)
        if event.is_pre and event is not HookEvent.PRE_CHECKPOINT_SAVE:
            pre_outcome(None, results).unwrap(event.rpartition("_")[2], run_id=data["run_id"])
        return results


def _was_changed(
    shown: Saveable,
    draft: CheckpointDraft,
    state: Saveable | None,
    results: Sequence[HookResult],
) -> bool:
    """Return whether hooks changed the state they were shown in place, and none of them failed."""
    if not isinstance(shown, AgentState):
        return False
    before = state if state is not None else state_of(draft)
    return shown != before and all(result.success for result in results)


def _save_data(draft: CheckpointDraft, state: Saveable) -> dict[str, Any]:
    place = draft.place
    return {
        "agent_id": place.name,
        "run_id": place.run_id,
        "step_number": place.step,
        "status": place.status,
        "timestamp": datetime.now(UTC),
        "state": state,
    }


def header_data(header: Header) -> dict[str, Any]:
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


def _replaced(old: CheckpointDraft, state: Saveable) -> CheckpointDraft:
    """What a hook made of the state; run, step and lineage stay what they were."""
    new = draft_of(state, new_run_id=old.place.run_id)
    place = msgspec.structs.replace(old.place, metadata=new.place.metadata, tags=new.place.tags)
    return msgspec.structs.replace(old, place=place, values=new.values, natures=new.natures)
