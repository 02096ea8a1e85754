"""`ResilientCheckpointManager`: checkpoints for an agent with its own loop.

The agent survives the death of its process, a failing medium, and its own mistakes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from surehold.agents.resilient.drift import AgentDrift, check_facts
from surehold.agents.resilient.fallbacks import with_fallbacks
from surehold.agents.resilient.providers import AgentParts, Captured, Provider, Providers
from surehold.agents.resilient.restore import (
    PARTIAL,
    AgentOperation,
    Restored,
    RestoreTarget,
    find_by_id,
    find_in_file,
    is_path,
    target_of,
)
from surehold.agents.resilient.transactions import (
    Begun,
    Transaction,
    TransactionStatus,
    transactions,
)
from surehold.core.policy import (
    Detector,
    DriftMonitor,
    DriftPolicy,
    DriftReport,
    Rules,
    Sensitivity,
    check_policy,
    default_detectors,
)
from surehold.core.records import Header, check_run_id
from surehold.core.state import Lineage, Place, State, read_metadata, read_tags
from surehold.core.values import encode
from surehold.engine.commit import OnSaveFailure, mark_note
from surehold.engine.crypto import Key
from surehold.engine.hooks import HookManager
from surehold.engine.journal import Note, draft_of
from surehold.engine.managers import CheckpointManager
from surehold.engine.repair import OnCorrupt
from surehold.engine.runs import OpenRun
from surehold.errors import (
    DataError,
    DriftError,
    RunError,
    StorageError,
    StorageFullError,
    SureholdError,
    UsageError,
)
from surehold.storage.base import RecordQuery, Storage

logger = logging.getLogger("surehold.checkpoint")
T = TypeVar("T")

_KINDS = ("routine", "recovery", "pre_operation")
_EMPTY = "empty"
_BEFORE_RESTORING = "before_restoring"
"""Metadata of a checkpoint whose providers had nothing to save."""


class ResilientCheckpointManager(AgentParts, CheckpointManager):
    """Checkpoints of one agent, with restores, guarded operations and drift detection.

    The agent's state is in four dicts that it may change in place (`current_task`, `mailbox`,
    `operational_context`, `memory`), in what a subclass returns from `_get_operational_context`
    and its like, and in what `register_provider` adds. Retention is by kind: the last three
    routine checkpoints, recovery ones for seven days, pre_operation ones until they are released.

    *fallbacks* are addresses of storages that each keep a copy and replace *storage* while it
    fails. Without *storage* the fallback is ``.surehold/fallback``. A given *storage* gets no
    fallback by itself; a `ResilientStorage` brings its own. A failed save is retried.

    *detectors*, *drift_sensitivity* and *drift_window* define drift, *on_drift* is the reaction of
    `check_drift`; stored records are verified every *verify_every* seconds. Tests may pass their
    own *clock* and *monotonic*.

    One process at a time saves for an agent: the manager takes the lease of its run when it
    saves, and raises `LeaseHeldError` while another process holds it.

    >>> manager = ResilientCheckpointManager("agent-3", "memory://")
    >>> manager.memory["notes"] = ["kelp"]
    >>> checkpoint_id = manager.create_checkpoint("routine")
    >>> manager.memory.clear()
    >>> _ = manager.restore_checkpoint(checkpoint_id)
    >>> manager.memory
    {'notes': ['kelp']}
    """

    def __init__(
        self,
        agent_id: str,
        storage: Storage | str | None = None,
        *,
        fallbacks: Sequence[str] | None = None,
        retention: Rules | None = None,
        hook_manager: HookManager | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "retry",
        on_corrupt: OnCorrupt = "fail",
        detectors: Iterable[Detector | type[Any]] | None = None,
        drift_sensitivity: Sensitivity | float = "normal",
        drift_window: int = 50,
        on_drift: DriftPolicy = "warn",
        verify_every: float = 300.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_policy(on_drift)
        if not verify_every > 0:
            raise UsageError(f"verify_every is {verify_every!r}", hint="give more than 0 seconds")
        monitor = DriftMonitor(
            default_detectors() if detectors is None else detectors,
            sensitivity=drift_sensitivity,
            window=drift_window,
        )
        self.agent_id = check_run_id(agent_id, "agent_id")
        super().__init__(
            with_fallbacks(storage, fallbacks),
            hook_manager=hook_manager,
            retention=Rules.by_kind_default() if retention is None else retention,
            encryption_key=encryption_key,
            old_keys=old_keys,
            on_save_failure=on_save_failure,
            on_corrupt=on_corrupt,
            clock=clock,
        )
        self.on_drift: DriftPolicy = on_drift
        self._clock = clock
        self._keys = (encryption_key, old_keys)
        self._held = OpenRun(
            self.agent_id, None, self, between_saves=True, now=lambda: clock().timestamp()
        )
        self._drift = AgentDrift(self._held, monitor, monotonic, verify_every)
        self._lock = threading.RLock()
        self._begin_empty()
        self._providers = Providers(self._own_providers())
        self._is_first = True
        self._warned_empty = False
        self._filled: frozenset[str] = frozenset()
        """The providers whose value in the last checkpoint was not empty."""
        self._trouble: object = None
        """State and facts of the last checkpoint, if it was taken for an exception."""
        self._kept: str | None = None
        """The checkpoint that is pinned because the state was emptied after it."""
        self._own_transactions: set[str] = set()
        self._manual: list[str] = []
        """The pre_operation checkpoints taken by hand since the last routine one."""

    def register_provider(
        self,
        name: str,
        capture: Callable[[], Any],
        restore: Callable[[Any], object],
        *,
        timeout: float | None = None,
    ) -> None:
        """Save what *capture* returns, and call *restore* with it in restores.

        A capture that fails must raise, and not return nothing. With *timeout*, both are called in
        a thread and count as failed after so many seconds.
        """
        self._providers.add(Provider(name, capture, restore, timeout))

    # Saving

    def create_checkpoint(
        self,
        kind: str = "routine",
        *,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Save the state of all providers and return the checkpoint's id.

        If a provider fails, the checkpoint is tagged ``partial``, its metadata names what is
        missing, and a warning is logged. If all fail, nothing is saved: a `RunError`. A recovery
        checkpoint taken while an exception is handled names it, and counts as a failed step; if the
        state has not changed since the last one for such an exception, that one is returned.

        A ``routine`` checkpoint releases the ``pre_operation`` checkpoints that this manager took
        before it, except those of an `operation` that still runs.

        A new process that saves without having restored anything is warned, and the newest state
        of the process before it is pinned, so that retention does not drop it. The same happens
        when the state, or the memory alone, is empty and was not in the checkpoint before; the pin
        moves on if that happens again.
        """
        self._check_kind(kind)
        with self._lock:
            facts: dict[str, Any] = {}
            error = sys.exception()
            if kind == "recovery" and error is not None:
                self._drift.observe(self._providers.capture_any(), {"failed": True})
                self._drift.warn_of_failures()
                facts["error"] = type(error).__name__
            facts.update(metadata or {})
            captured = self._providers.capture()
            trouble = (captured, facts, tuple(tags)) if error is not None else None
            if trouble is not None and kind == "recovery" and trouble == self._trouble:
                assert self._held.lineage.checkpoint_id is not None
                return self._held.lineage.checkpoint_id
            self._protect_last_good(captured)
            while self._manual and kind == "routine" and error is None:
                self.release(self._manual.pop())
            saved = self._save(captured, kind, tags=tags, metadata=facts)
            if saved:
                self._filled = captured.filled
                self._trouble = trouble if kind == "recovery" else None
            if saved and kind == "pre_operation":
                self._manual.append(saved)
            return saved

    def get_latest_checkpoint(
        self, kind: str = "routine", before: str | datetime | None = None
    ) -> str | None:
        """Return the id of the newest complete checkpoint of that kind, or None.

        *before* is the id of a checkpoint or a time, and excludes what was saved later. Without
        it, while `detect_drift` advises a restore, a checkpoint from before the drift is preferred.
        """
        self._check_kind(kind)
        until = after = None
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise UsageError("before has no time zone", hint="give datetime.now(UTC)")
            until = before - timedelta(microseconds=1)
        elif before is not None:
            after = self.reader.resolve(before, run_id=self.agent_id).id
        query = RecordQuery(run_id=self.agent_id, scope="", kind=kind, until=until, before=after)
        complete = [one for one in self.storage.headers(query) if PARTIAL not in one.tags]
        since = self._drift.since if before is None else None
        sound = [one for one in complete if since is None or one.step < since]
        return next((header.id for header in sound or complete), None)

    def append_notes(
        self,
        run_id: str,
        notes: Sequence[Note],
        head: int | None = None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Append notes to a run; a failure is raised whatever the policy for checkpoints."""
        if run_id != self.agent_id or head is not None:
            return super().append_notes(run_id, notes, head, epoch=epoch)
        with self._lock:
            self._held.record(notes)

    def close(self) -> None:
        """Release the agent, and close the storage if this manager opened it."""
        self._held.close()
        super().close()

    def _check_kind(self, kind: str) -> None:
        if not kind:
            raise UsageError("the kind of a checkpoint is empty", hint="such as 'routine'")
        close = get_close_matches(kind, _KINDS, n=1, cutoff=0.75)
        if kind not in _KINDS and close:
            raise UsageError(
                f"{kind!r} is not a kind of checkpoint", hint=f"did you mean {close[0]!r}?"
            )

    def _save(
        self,
        captured: Captured,
        kind: str,
        *,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        notes_for: Callable[[Header], Sequence[Note]] | None = None,
    ) -> str:
        facts = dict(metadata or {})
        marks = list(read_tags(tags))
        self._trouble = None
        lacking = captured.missing
        if lacking:
            marks.append(PARTIAL)
            # Metadata is stored in the clear, and the text of an error may quote a secret.
            facts["missing"] = {name: why.partition(":")[0] for name, why in lacking.items()}
            logger.warning("agent %s: a %s checkpoint lacks %s", self.agent_id, kind, lacking)
        if captured.is_empty:
            facts[_EMPTY] = True
            if not self._warned_empty and _BEFORE_RESTORING not in facts:
                self._warned_empty = True
                logger.warning(
                    "agent %s: a checkpoint without any state was saved: put the agent's state into"
                    " manager.memory, current_task, mailbox or operational_context, or call"
                    " register_provider()",
                    self.agent_id,
                )
        place = Place(
            run_id=self.agent_id,
            name=self.agent_id,
            step=self._drift.history.step_of(captured),
            kind=kind,
            tags=tuple(dict.fromkeys(marks)),
            metadata=read_metadata(facts),
        )
        state = State.restore(captured.texts, place, self._clock(), None)
        observed = self._drift.history.note()
        notes = () if observed is None else (observed,)
        draft = msgspec.structs.replace(draft_of(state), lineage=self._held.lineage)
        saved = self._held.save(draft, notes=notes, notes_for=notes_for, state=state, force=True)
        if saved:
            self._drift.history.stored()
            self._is_first = False
        return saved

    def _protect_last_good(self, captured: Captured) -> None:
        """Pin the last good state, if it was emptied, or this process has not restored it."""
        emptied = self._emptied(captured)
        if not self._is_first and not emptied:
            return
        query = RecordQuery(run_id=self.agent_id, scope="")
        for good in self.storage.headers(query):
            if not good.metadata.get(_EMPTY) and PARTIAL not in good.tags:
                break
        else:
            return
        new = "an empty" if captured.is_empty else "a new"
        logger.warning(
            "agent %s: %s; checkpoint %s of %s is kept: restore_checkpoint(%r) returns to it,"
            " release it with unpin(%r)",
            self.agent_id,
            emptied or f"{new} state is saved by a process that restored nothing",
            good.id,
            good.saved_at.isoformat(timespec="seconds"),
            good.id,
            good.id,
        )
        if good.seq not in self.retention.marks(self.agent_id).pinned:
            self._held.check()
            self.pin(good.id)
            if emptied:
                # A state that is emptied again and again keeps one checkpoint, not all.
                if self._kept is not None:
                    self.unpin(self._kept)
                self._kept = good.id

    def _emptied(self, captured: Captured) -> str:
        """Say which state is empty now and was not in the last checkpoint; "" if none is."""
        if self._filled and captured.is_empty:
            return "its whole state was emptied"
        # A task ends and a mailbox is read; a memory is to last.
        lost = (self._filled & {"memory"}) - captured.filled - captured.missing.keys()
        return "its memory was emptied" if lost else ""

    # Restoring

    def restore_checkpoint(
        self, id_or_path: str | os.PathLike[str], *, partial: bool = False
    ) -> Restored:
        """Give every provider back its state at a checkpoint, or change none of them.

        *id_or_path* is an id or a unique prefix of one, or the path of a file: one that
        `export_run` wrote, or a run's journal in a directory of `FilesystemStorage`. The present
        state is saved first, with kind ``recovery``; `undo_restore` returns to it. On a full disk
        it is not saved, which is logged. If a provider fails, those before it get their state
        back, and a `RunError` says so.

        A checkpoint that is missing, damaged, another agent's, or (without *partial*) partial is
        refused before anything is changed. One that was saved during an operation which never
        ended is restored with a warning.
        """
        if id_or_path is None:
            raise UsageError(
                f"there is no checkpoint of agent {self.agent_id!r} to restore",
                hint="get_latest_checkpoint() returns None while there is none: check that first",
            )
        with self._lock:
            if is_path(id_or_path):
                found = find_in_file(self._manager_on, self.agent_id, id_or_path)
            else:
                self._held.check()
                checkpoint_id = str(id_or_path)
                taken = self._as_taken(checkpoint_id)
                found = taken or find_by_id(self, self.agent_id, checkpoint_id)
                self._warn_of_unfinished(found.header)
            return self._restore(found, partial=partial)

    def _as_taken(self, checkpoint_id: str) -> RestoreTarget | None:
        """The checkpoint that was read when the run was taken, while it is the newest."""
        held = self._held
        loaded, held.loaded = held.loaded, None
        if loaded is None or loaded.header is not held.newest or loaded.header.id != checkpoint_id:
            return None
        return target_of(loaded, self.agent_id)

    def undo_restore(self) -> Restored:
        """Return to the state before the last restore; called again, undo that."""
        with self._lock:
            for done in self.transactions(status="success"):
                if done.operation == "restore":
                    found = find_by_id(self, self.agent_id, done.details["safety_id"])
                    return self._restore(found, partial=PARTIAL in found.header.tags)
        raise UsageError(f"nothing of agent {self.agent_id!r} was restored")

    def _warn_of_unfinished(self, target: Header) -> None:
        for one in self.transactions(status="started"):
            if one.id in self._own_transactions or one.started_at >= target.saved_at:
                continue
            if _before(one) != target.id:
                logger.warning(
                    "agent %s: checkpoint %s was saved during operation %r, which never ended:"
                    " roll_back_unfinished() restores the state before it",
                    self.agent_id,
                    target.id,
                    one.operation,
                )

    def _restore(self, found: RestoreTarget, *, partial: bool) -> Restored:
        target = found.header.id
        values = found.state.to_dict()
        self._providers.check(values, target, partial=partial)
        before = self._providers.capture_any()
        begun = Begun("restore")
        try:
            safety_id = self._save(
                before,
                "recovery",
                metadata={_BEFORE_RESTORING: target},
                notes_for=lambda header: (
                    begun.note({"checkpoint_id": target, "safety_id": header.id}),
                ),
            )
        except StorageFullError as error:
            return self._restore_unsaved(found, values, before, error)
        if not safety_id:
            raise StorageError("the present state could not be saved, so nothing was restored")
        self._own_transactions.add(begun.id)
        try:
            self._providers.restore(values, before)
            self._continue_from(found, values, before, begun)
        except BaseException as error:
            self._log_end(begun, "rollback", error)
            raise
        return Restored(
            checkpoint_id=target,
            safety_id=safety_id,
            providers=tuple(values),
            transaction_id=begun.id,
        )

    def _restore_unsaved(
        self,
        found: RestoreTarget,
        values: Mapping[str, Any],
        before: Captured,
        error: StorageFullError,
    ) -> Restored:
        """Restore without saving anything: there is no room to."""
        logger.warning(
            "agent %s: checkpoint %s is restored, but undo_restore() cannot undo it: %s",
            self.agent_id,
            found.header.id,
            error,
        )
        self._providers.restore(values, before)
        self._is_first = False
        self._drift.restart(self._providers.capture_any())
        return Restored(
            checkpoint_id=found.header.id, safety_id="", providers=tuple(values), transaction_id=""
        )

    def _continue_from(
        self, found: RestoreTarget, values: Mapping[str, Any], before: Captured, begun: Begun
    ) -> None:
        """Save the restored state as the newest checkpoint."""
        lineage = self._held.lineage
        if found.loaded is not None:
            self.face.journal.branch_at(found.loaded)
            self._held.lineage = Lineage(found.header.id)
        # A partial checkpoint leaves the providers that it lacks as they are.
        texts = before.texts | {name: encode(value) for name, value in values.items()}
        missing = {name: why for name, why in before.missing.items() if name not in values}
        captured = Captured({n: texts[n] for n in self._providers.names if n in texts}, missing)
        self._drift.restart(captured)
        try:
            saved = self._save(
                captured,
                "recovery",
                metadata={"restored_from": found.header.id},
                notes_for=lambda _: (begun.note(status="success"),),
            )
            if not saved:
                raise StorageError("the restored state could not be saved")
            self._filled = captured.filled
        except BaseException as error:
            self.face.journal.invalidate(self.agent_id)
            self._held.lineage = lineage
            lost = self._providers.put_back([*values], before)
            if lost:
                error.add_note(f"surehold: not put back as they were: {lost}")
            raise

    def _manager_on(self, storage: Storage) -> CheckpointManager:
        """Return a plain manager with the same keys."""
        key, old = self._keys
        return CheckpointManager(storage, encryption_key=key, old_keys=old)

    # Operations

    @contextmanager
    def operation(self, name: str, /, **details: Any) -> Iterator[AgentOperation]:
        """Guard a risky piece of work: if it fails, the agent's earlier state is restored.

        A ``pre_operation`` checkpoint is taken first. On success it is released, with those of
        earlier attempts that failed; on failure it is restored and the error raised again. Both
        are in the transaction log. If a provider cannot be captured, the work is not started.
        """
        with self._lock:
            captured = self._providers.capture()
            if captured.missing:
                raise RunError(
                    f"operation {name!r} is not started: {', '.join(captured.missing)} could not be"
                    " captured, so it could not be undone",
                    hint="fix the provider",
                    missing=captured.missing,
                )
            begun = Begun(name)
            self._own_transactions.add(begun.id)
            checkpoint_id = self._save(
                captured,
                "pre_operation",
                metadata={"operation": name},
                notes_for=lambda header: (
                    begun.note({**details, "checkpoint_id": header.id}),
                    mark_note(header, "pin"),  # whatever retention says of what is saved meanwhile
                ),
            )
        if not checkpoint_id:
            raise StorageError(f"operation {name!r} is not started: it could not be saved")
        try:
            yield AgentOperation(name=name, transaction_id=begun.id, checkpoint_id=checkpoint_id)
        except BaseException as error:
            self._roll_back(checkpoint_id, begun, error)
            raise
        self._succeed(begun, checkpoint_id)

    def _roll_back(self, checkpoint_id: str, begun: Begun, error: BaseException) -> None:
        try:
            self.restore_checkpoint(checkpoint_id)
        except SureholdError as failure:
            error.add_note(f"surehold: the agent was not restored: {failure}")
            self._log_end(begun, "failure", error)
        else:
            self._log_end(begun, "rollback", error, self._unpinned([checkpoint_id]))

    def _unpinned(self, checkpoint_ids: Iterable[str]) -> list[Note]:
        """The notes that end the pins of operations."""
        pinned = self.retention.marks(self.agent_id).pinned
        found = [one for id in checkpoint_ids for one in self.storage.find(id) if one.id == id]
        ours = (one for one in found if one.run_id == self.agent_id and one.seq in pinned)
        return [mark_note(one, "pin", content={"on": False}) for one in ours]

    def _succeed(self, begun: Begun, checkpoint_id: str) -> None:
        released = self.retention.marks(self.agent_id).released
        query = RecordQuery(
            run_id=self.agent_id, kind="pre_operation", metadata={"operation": begun.operation}
        )
        others = {_before(one) for one in self.transactions(status="started") if one.id != begun.id}
        done: list[Header] = [
            header
            for header in self.storage.headers(query)
            if header.seq not in released and header.id not in others
        ]
        notes = [begun.note(status="success"), *(mark_note(header, "release") for header in done)]
        self.append_notes(self.agent_id, [*notes, *self._unpinned([checkpoint_id])])

    def _log_end(
        self,
        begun: Begun,
        status: TransactionStatus,
        error: BaseException,
        notes: Sequence[Note] = (),
    ) -> None:
        """Log the end of a failed transaction; add a note to *error* if that fails too."""
        try:
            note = begun.note(status=status, error=error)
            self.append_notes(self.agent_id, [note, *notes])
        except SureholdError as failure:
            error.add_note(f"surehold: this is not in the transaction log: {failure}")

    def transactions(
        self, *, status: TransactionStatus | None = None, limit: int | None = None
    ) -> Sequence[Transaction]:
        """List operations and restores, newest first; unfinished ones are "started"."""
        return transactions(self, self.agent_id, status, limit)

    def roll_back_unfinished(self) -> Sequence[Transaction]:
        """Undo the operations and restores that a crash cut off, and return them.

        The agent gets its state from before the first of them back.
        """
        with self._lock:
            cut_off = [one for one in self.transactions(status="started") if _before(one)]
            if cut_off:
                found = find_by_id(self, self.agent_id, _before(cut_off[-1]))
                self._restore(found, partial=PARTIAL in found.header.tags)
                ends = [Begun(one.operation, one.id).note(status="rollback") for one in cut_off]
                pins = self._unpinned(map(_before, cut_off))
                self.append_notes(self.agent_id, [*ends, *pins])
            ids = {one.id for one in cut_off}
            return [one for one in self.transactions() if one.id in ids]

    # Drift

    def observe(self, **facts: Any) -> None:
        """Describe a step: ``action, progress, failed, seconds, task, idle, backlog``.

        The rest is taken from `current_task`, `mailbox` and the clock. Without this call, each
        `detect_drift` counts as a step, and a recovery checkpoint taken while an exception is
        being handled counts as a failed one.
        """
        check_facts(facts)
        with self._lock:
            self._drift.observe(self._providers.capture_any(), facts)
            self._drift.is_described = True

    def detect_drift(self) -> DriftReport | bool:
        """Count a step, unless `observe` did; report drift, true if it advises a restore.

        Findings that only warn are logged once and leave the report false, so that a loop which
        restores on drift loses no healthy work. After a restore only later steps count. A subclass
        may add its own check: ``return super().detect_drift() or self._my_own()``.
        """
        with self._lock:
            if not self._drift.is_described:
                self._drift.observe(self._providers.capture_any(), {})
            return self._drift.detect()

    def drift_report(self) -> DriftReport:
        """Return the findings about the last steps, without counting one."""
        with self._lock:
            return self._drift.report()

    def check_drift(self) -> DriftReport:
        """Call `detect_drift`, and react to drift as *on_drift* says.

        If the report advises a restore, a recovery checkpoint is taken. Then a warning is logged
        (``warn``); or the newest good checkpoint from before the drift is restored (``restore``),
        an older one each time until a whole window of steps has passed without drift; or a
        `DriftError` is raised (``stop``, and when no earlier checkpoint is left).
        """
        with self._lock:
            drifts = self.detect_drift()
            report = self._drift.confirmed(bool(drifts))
            if report:
                recovery = self.create_checkpoint("recovery", tags=["drift"])
                self._react(report, recovery)
            return report

    def _react(self, report: DriftReport, recovery: str) -> None:
        logger.warning("agent %s drifts (%s): %s", self.agent_id, self.on_drift, report)
        if self.on_drift == "warn":
            return
        good = self._last_good(report.since) if self.on_drift == "restore" else None
        if good is not None:
            self._drift.restored_seq = good.seq
            self.restore_checkpoint(good.id)
            return
        why = "" if self.on_drift == "stop" else ", and no earlier checkpoint is left to restore"
        raise DriftError(
            f"agent {self.agent_id!r} drifts{why}: {report}",
            agent_id=self.agent_id,
            report=report,
            checkpoint_id=recovery,
        )

    def _last_good(self, since: int | None) -> Header | None:
        """Return the newest whole checkpoint before *since* and the last drift restore.

        Recovery checkpoints are passed over: they hold states in trouble.
        """
        last = self._drift.restored_seq
        for header in self.storage.headers(RecordQuery(run_id=self.agent_id, scope="")):
            late = since is not None and header.step >= since
            later = last is not None and header.seq >= last
            if late or later or header.kind == "recovery" or PARTIAL in header.tags:
                continue
            try:
                self.reader.load(header)
            except DataError:
                logger.warning("checkpoint %s is damaged and passed over", header.id)
                continue
            return header
        return None


def _before(transaction: Transaction) -> str:
    """Return the id of the checkpoint before a transaction; "" for another's."""
    details = transaction.details
    return str(details.get("safety_id") or details.get("checkpoint_id") or "")
