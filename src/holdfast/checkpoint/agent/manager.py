"""The checkpoints of one agent: taken of its providers, restored all or nothing, and undone."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.agent.providers import AgentParts, Captured, Provider, Providers
from holdfast.checkpoint.agent.restore import (
    PARTIAL,
    Found,
    Operation,
    Restored,
    find_by_id,
    find_in_file,
    is_path,
)
from holdfast.checkpoint.agent.transactions import Transaction, TransactionLog, TransactionStatus
from holdfast.checkpoint.crypto import Key
from holdfast.checkpoint.hooks import HookManager
from holdfast.checkpoint.journal import Note, draft_of
from holdfast.checkpoint.manager import CheckpointManager
from holdfast.checkpoint.operations import OnSaveFailure, mark_note
from holdfast.checkpoint.repair import OnCorrupt
from holdfast.core.policy import Rules
from holdfast.core.records import Header, check_run_id, new_id
from holdfast.core.state import Lineage, Place, State, read_metadata, read_tags
from holdfast.core.values import encode
from holdfast.errors import HoldfastError, RunError, StorageError, UsageError
from holdfast.storage.base import RecordQuery, Storage

__all__ = ["AgentCheckpoints"]

logger = logging.getLogger("holdfast.checkpoint")


class AgentCheckpoints(AgentParts, CheckpointManager):
    """A manager of one agent's checkpoints; `ResilientCheckpointManager` is the one to use."""

    def __init__(
        self,
        agent_id: str,
        storage: Storage | str | None = None,
        *,
        retention: Rules | None = None,
        hook_manager: HookManager | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "fail",
        on_corrupt: OnCorrupt = "fail",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.agent_id = check_run_id(agent_id, "agent_id")
        super().__init__(
            storage,
            hook_manager=hook_manager,
            retention=Rules.by_kind_default() if retention is None else retention,
            encryption_key=encryption_key,
            old_keys=old_keys,
            on_save_failure=on_save_failure,
            on_corrupt=on_corrupt,
            clock=clock,
        )
        self._begin_empty()
        self._clock = clock
        self._keys = (encryption_key, old_keys)
        self._log = TransactionLog(self, self.agent_id)
        self._lineage = Lineage()
        self._drifts_since: int | None = None
        self._lock = threading.RLock()
        self._providers = Providers()
        for provider in self._own_providers():
            self._providers.add(provider)

    # What a checkpoint is made of

    def register_provider(
        self, name: str, capture: Callable[[], Any], restore: Callable[[Any], object]
    ) -> None:
        """Have checkpoints hold what *capture* returns, and restores call *restore* with it.

        A capture that fails must raise, and not return nothing.
        """
        self._providers.add(Provider(name, capture, restore))

    # Saving

    def create_checkpoint(
        self,
        kind: str = "routine",
        *,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Save what the providers give, and return the checkpoint's id.

        If a provider fails, the checkpoint is tagged ``partial``, its metadata names what is
        missing, and a warning is logged. If all fail, nothing is saved: a `RunError`. A recovery
        checkpoint that is taken while an exception is handled says which, and counts as a step
        that failed.
        """
        with self._lock:
            facts = {**self._circumstances(kind), **(metadata or {})}
            return self._save(self._providers.capture(), kind, tags=tags, metadata=facts)

    def _circumstances(self, kind: str) -> dict[str, Any]:
        """What the metadata of a checkpoint of that kind says of itself."""
        return {}

    def get_latest_checkpoint(
        self, kind: str = "routine", before: str | datetime | None = None
    ) -> str | None:
        """Return the id of the newest complete checkpoint of that kind; None if there is none.

        *before* is the id of a checkpoint or a time, and excludes what was saved later. Without
        it, while `detect_drift` advises a restore, a checkpoint from before the drift is preferred.
        """
        until = after = None
        if isinstance(before, datetime):
            if before.tzinfo is None:
                raise UsageError("before has no time zone", hint="give datetime.now(UTC)")
            until = before - timedelta(microseconds=1)
        elif before is not None:
            after = self.reader.resolve(before, run_id=self.agent_id).id
        query = RecordQuery(run_id=self.agent_id, scope="", kind=kind, until=until, before=after)
        complete = [one for one in self.storage.headers(query) if PARTIAL not in one.tags]
        since = self._drifts_since if before is None else None
        sound = [one for one in complete if since is None or one.step < since]
        return next((header.id for header in sound or complete), None)

    def _save(
        self,
        captured: Captured,
        kind: str,
        *,
        checkpoint_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        notes: tuple[Note, ...] = (),
    ) -> str:
        if not kind:
            raise UsageError("the kind of a checkpoint is empty", hint="such as 'routine'")
        facts = dict(metadata or {})
        marks = list(read_tags(tags))
        lacking = captured.missing
        if lacking:
            marks.append(PARTIAL)
            # Metadata is stored in the clear, and the text of an error may quote a secret.
            facts["missing"] = {name: why.partition(":")[0] for name, why in lacking.items()}
            logger.warning("agent %s: a %s checkpoint lacks %s", self.agent_id, kind, lacking)
        place = Place(
            run_id=self.agent_id,
            name=self.agent_id,
            step=self._step(captured),
            kind=kind,
            tags=tuple(dict.fromkeys(marks)),
            metadata=read_metadata(facts),
        )
        state = State.restore(captured.texts, place, self._clock(), None)
        draft = msgspec.structs.replace(draft_of(state), lineage=self._lineage, id=checkpoint_id)
        beside = self._beside()
        steps = self.engine.save_draft(draft, state, force=True, notes=(*notes, *beside))
        header = self.perform(steps)
        if header is None:
            return ""
        self._saved(beside)
        return header.id

    def _step(self, captured: Captured) -> int:
        """How far the agent has come with this."""
        return 0

    def _beside(self) -> tuple[Note, ...]:
        """Notes to be stored with the next checkpoint."""
        return ()

    def _saved(self, notes: tuple[Note, ...]) -> None:
        """These notes are stored."""

    # Restoring

    def restore_checkpoint(
        self, id_or_path: str | os.PathLike[str], *, partial: bool = False
    ) -> Restored:
        """Give every provider back what it had at a checkpoint, or none of them.

        *id_or_path* is an id or a unique prefix of one, or the path of a file: one that
        `export_run` wrote, or a run's journal in a directory of `FilesystemStorage`. What there is
        now is saved first, with kind ``recovery``; `undo_restore` goes back to it. If a provider
        fails, those before it are given back what they had, and a `RunError` says so.

        A checkpoint that is missing, damaged, another agent's, or (without *partial*) partial is
        refused before anything is touched.
        """
        if id_or_path is None:
            raise UsageError(
                f"there is no checkpoint of agent {self.agent_id!r} to restore",
                hint="get_latest_checkpoint() gives None while there is none: ask that first",
            )
        with self._lock:
            if is_path(id_or_path):
                found = find_in_file(self._manager_on, self.agent_id, id_or_path)
            else:
                found = find_by_id(self, self.agent_id, str(id_or_path))
            return self._restore(found, partial=partial)

    def undo_restore(self) -> Restored:
        """Go back to what there was before the last restore; called again, forward again."""
        with self._lock:
            for done in self._log.list(status="success"):
                if done.operation == "restore":
                    found = find_by_id(self, self.agent_id, done.details["safety_id"])
                    return self._restore(found, partial=PARTIAL in found.header.tags)
        raise UsageError(f"nothing of agent {self.agent_id!r} was restored")

    def _restore(self, found: Found, *, partial: bool) -> Restored:
        target = found.header.id
        values = found.state.to_dict()
        self._providers.check(values, target, partial=partial)
        before = self._providers.capture_any()
        safety_id = new_id(time.time_ns(), os.urandom(8))
        transaction, start = self._log.begun("restore", checkpoint_id=target, safety_id=safety_id)
        saved = self._save(
            before,
            "recovery",
            checkpoint_id=safety_id,
            metadata={"before_restoring": target},
            notes=(start,),
        )
        if not saved:
            raise StorageError("what there is now could not be saved, so nothing was restored")
        try:
            self._providers.restore(values, before)
            self._go_on_from(found, values, before, transaction)
        except BaseException as error:
            self._log_end(transaction, "rollback", error)
            raise
        return Restored(
            checkpoint_id=target,
            safety_id=safety_id,
            providers=tuple(values),
            transaction_id=transaction,
        )

    def _go_on_from(
        self, found: Found, values: Mapping[str, Any], before: Captured, transaction: str
    ) -> None:
        """Save what was restored as the newest, so that the agent goes on from it."""
        lineage = self._lineage
        if found.loaded is not None:
            self.engine.journal.resume_from(found.loaded, None)
            self._lineage = Lineage(found.header.id)
        # What a partial checkpoint does not hold is as it was.
        texts = before.texts | {name: encode(value) for name, value in values.items()}
        missing = {name: why for name, why in before.missing.items() if name not in values}
        captured = Captured({n: texts[n] for n in self._providers.names if n in texts}, missing)
        self._was_restored(captured)
        try:
            saved = self._save(
                captured,
                "recovery",
                metadata={"restored_from": found.header.id},
                notes=(self._log.ending(transaction, "success"),),
            )
            if not saved:
                raise StorageError("what was restored could not be saved")
        except BaseException as error:
            self.engine.journal.invalidate(self.agent_id)
            self._lineage = lineage
            lost = self._providers.put_back([*values], before)
            if lost:
                error.add_note(f"holdfast: not put back as they were: {lost}")
            raise

    def _was_restored(self, captured: Captured) -> None:
        """The providers hold this now."""

    def _manager_on(self, storage: Storage) -> CheckpointManager:
        """A plain manager with the same keys."""
        key, old = self._keys
        return CheckpointManager(storage, encryption_key=key, old_keys=old)

    # Operations

    @contextmanager
    def operation(self, name: str, /, **details: Any) -> Iterator[Operation]:
        """Guard a risky piece of work: if it fails, the agent is as it was before.

        A ``pre_operation`` checkpoint is taken first. On success it is released, with those of
        earlier attempts that failed; on failure it is restored and the error raised again. Both
        are in the transaction log. If a provider cannot be captured, the work is not begun.
        """
        with self._lock:
            captured = self._providers.capture()
            if captured.missing:
                raise RunError(
                    f"operation {name!r} is not begun: {', '.join(captured.missing)} could not be"
                    " captured, so it could not be undone",
                    hint="see why the provider fails",
                    missing=captured.missing,
                )
            checkpoint_id = new_id(time.time_ns(), os.urandom(8))
            transaction, start = self._log.begun(name, **details, checkpoint_id=checkpoint_id)
            saved = self._save(
                captured,
                "pre_operation",
                checkpoint_id=checkpoint_id,
                metadata={"operation": name},
                notes=(start,),
            )
        if not saved:
            raise StorageError(f"operation {name!r} is not begun: it could not be saved")
        try:
            yield Operation(name=name, transaction_id=transaction, checkpoint_id=checkpoint_id)
        except BaseException as error:
            self._roll_back(checkpoint_id, transaction, error)
            raise
        self._succeed(name, transaction)

    def _roll_back(self, checkpoint_id: str, transaction: str, error: BaseException) -> None:
        try:
            self.restore_checkpoint(checkpoint_id)
        except HoldfastError as failure:
            error.add_note(f"holdfast: the agent was not restored: {failure}")
            self._log_end(transaction, "failure", error)
        else:
            self._log_end(transaction, "rollback", error)

    def _succeed(self, name: str, transaction: str) -> None:
        released = self.retention.marks(self.agent_id).released
        query = RecordQuery(
            run_id=self.agent_id, kind="pre_operation", metadata={"operation": name}
        )
        others = {_before(one) for one in self._log.list(status="started") if one.id != transaction}
        done: list[Header] = [
            header
            for header in self.storage.headers(query)
            if header.seq not in released and header.id not in others
        ]
        ended = self._log.ending(transaction, "success")
        notes = [ended, *(mark_note(header, "release") for header in done)]
        self.append_notes(self.agent_id, notes)

    def _log_end(self, transaction: str, status: TransactionStatus, error: BaseException) -> None:
        """Log how something ended that failed; a failure to do so is told with its error."""
        try:
            note = self._log.ending(transaction, status, error)
            self.append_notes(self.agent_id, [note])
        except HoldfastError as failure:
            error.add_note(f"holdfast: this is not in the transaction log: {failure}")

    def transactions(
        self, *, status: TransactionStatus | None = None, limit: int | None = None
    ) -> Sequence[Transaction]:
        """Operations and restores, newest first; those that are cut off have status "started"."""
        return self._log.list(status=status, limit=limit)

    def roll_back_unfinished(self) -> Sequence[Transaction]:
        """After a crash: undo the operations and restores that it cut off; gives which.

        The agent is restored to what it was before the first of them began.
        """
        with self._lock:
            cut_off = [one for one in self._log.list(status="started") if _before(one)]
            if cut_off:
                found = find_by_id(self, self.agent_id, _before(cut_off[-1]))
                self._restore(found, partial=PARTIAL in found.header.tags)
            for one in cut_off:
                self._log.rollback(one.id)
            return [self._log.get(one.id) for one in cut_off]


def _before(transaction: Transaction) -> str:
    """The checkpoint of what there was before it; none of what somebody else logs."""
    details = transaction.details
    return str(details.get("safety_id") or details.get("checkpoint_id") or "")
