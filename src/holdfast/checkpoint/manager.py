"""The managers: `CheckpointManager` blocks, `StateManager` is awaited; both do the same."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.checkpoint.gathering import Gatherer
from holdfast.checkpoint.hooks import HookManager
from holdfast.checkpoint.journal import Note
from holdfast.checkpoint.keys import Key, load_keys
from holdfast.checkpoint.metrics import Metrics
from holdfast.checkpoint.operations import OnSaveFailure, Operations
from holdfast.checkpoint.steps import Commit, Fire, Pause, Steps, Work
from holdfast.checkpoint.subject import Saveable, Subject
from holdfast.checkpoint.views import Change, CheckpointMetadata, HistoryEntry, Verdict
from holdfast.checkpoint.writer import Writer, see_through
from holdfast.core import state as _state
from holdfast.core.agent_state import StateSnapshot
from holdfast.core.rules import Rules
from holdfast.core.triggers import Triggers
from holdfast.errors import UsageError
from holdfast.storage.base import Storage, open_storage

__all__ = ["CheckpointManager", "StateManager", "saver_for"]

T = TypeVar("T")


class _Manager:
    """What both managers are made of."""

    def __init__(
        self,
        storage: Storage | str | None = None,
        checkpoint_frequency: int | None = None,
        checkpoint_interval: float | None = None,
        retention_count: int | None = None,
        hook_manager: HookManager | None = None,
        *,
        retention: Rules | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "fail",
    ) -> None:
        self._owns_storage = not isinstance(storage, Storage)
        rules = _rules(retention_count, retention)
        triggers = Triggers(frequency=checkpoint_frequency, interval=checkpoint_interval)
        keys = load_keys(encryption_key, environ=os.environ, old_keys=old_keys)
        self.storage = open_storage(storage)
        self.operations = Operations(
            self.storage,
            hooks=hook_manager,
            triggers=triggers,
            rules=rules,
            keys=keys,
            on_save_failure=on_save_failure,
        )
        self._gatherer = Gatherer(self.operations.journal)

    @property
    def hook_manager(self) -> HookManager | None:
        """The hooks that are told."""
        return self.operations.hooks

    @property
    def metrics(self) -> Metrics:
        """Counts and times of what this manager did."""
        return self.operations.metrics

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Whether it is time to save: so many steps, or seconds, after the last save.

        Seconds are monotonic and compared only with each other. The first call does not fire by
        itself; what was saved before a resume counts.
        """
        return self.operations.should_checkpoint(name_or_run_id, current_step, current_time)

    def create_snapshot(self, state: Saveable, reason: str = "manual") -> StateSnapshot:
        """A copy of *state* as it is now, with a summary. It is not stored."""
        return self.operations.snapshot(state, reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {type(self.storage).__name__}>"


def _rules(count: int | None, rules: Rules | None) -> Rules:
    if count is not None and rules is not None:
        raise UsageError("retention_count and retention are both given", hint="give one of them")
    if count is not None:
        return Rules(keep_last=count, group_by="name")
    return rules or Rules()


class CheckpointManager(_Manager):
    """Saves states to a storage and brings them back. Blocking; safe to use from many threads.

    *storage* is a `Storage`, an address such as ``sqlite:///agents.db``, a registered name, or
    None for the default address. With *retention_count* the newest so many checkpoints of each
    name (or run without one) are kept; *retention* takes any `Rules`.

    >>> manager = CheckpointManager("memory://")
    >>> state = State.new({"done": 0}, run_id="nightly")
    >>> checkpoint_id = manager.save_checkpoint(state.set("done", 1).at(step=1))
    >>> manager.resume_from_latest("nightly")["done"]
    1
    """

    def _drive(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = self._do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _do(self, step: Fire | Commit | Work | Pause) -> Any:
        if type(step) is Commit:
            return self._gatherer.commit(step.request)
        if type(step) is Work:
            return step.call()
        if type(step) is Pause:
            return time.sleep(step.seconds)
        assert type(step) is Fire and self.operations.hooks is not None
        return self.operations.hooks.fire(step.event, step.agent_id, step.data)

    def save_checkpoint(self, state: Saveable, force: bool = False) -> str:
        """Save *state* and return the checkpoint's id; it is durable when this returns.

        A state that says nothing new is not written again, and the id of the checkpoint that
        said it is returned, unless *force* is given.
        """
        return _said(self._drive(self.operations.save(state, force=force)))

    def save_subject(
        self, subject: Subject, *, force: bool = False, notes: Sequence[Note] = ()
    ) -> str:
        """Save what stands for a state, and notes, in one atomic append.

        For those who keep a state of their own kind. Returns the checkpoint's id.
        """
        steps = self.operations.save_subject(subject, force=force, notes=tuple(notes))
        header = self._drive(steps)
        return header.id if header is not None else ""

    def append_notes(self, run_id: str, notes: Sequence[Note]) -> None:
        """Append notes to a run; whatever the policy for checkpoints, a failure is raised."""
        self._drive(self.operations.append_notes(run_id, notes))

    def load_checkpoint(self, checkpoint_id: str) -> Saveable:
        """The state saved as *checkpoint_id*, or as the one id that begins so."""
        return self._drive(self.operations.load(checkpoint_id))

    def resume_from_latest(self, name_or_run_id: str) -> Any:
        """The newest state of that run, or of the newest run of that name that is not completed.

        None if there is nothing to resume.
        """
        return self._drive(self.operations.resume(name_or_run_id))

    def latest(self, name_or_run_id: str) -> CheckpointMetadata | None:
        """What `resume_from_latest` would load, without its state."""
        return self._drive(self.operations.latest(name_or_run_id))

    def exists(self, checkpoint_id: str) -> bool:
        """Whether there is a checkpoint with exactly this id."""
        return self._drive(self.operations.exists(checkpoint_id))

    def list_checkpoints(
        self,
        name_or_run_id: str | None = None,
        *,
        scope: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[CheckpointMetadata]:
        """Checkpoints, newest first. *before* is the id that the last page ended with."""
        return self._drive(
            self.operations.list(
                name_or_run_id,
                scope=scope,
                kind=kind,
                status=status,
                tag=tag,
                metadata=metadata,
                since=since,
                until=until,
                before=before,
                limit=limit,
            )
        )

    def fork_from_checkpoint(self, checkpoint_id: str, run_id: str | None = None) -> Saveable:
        """Begin a new run with the state of that checkpoint; the source is left as it is."""
        return self._drive(self.operations.fork(checkpoint_id, run_id))

    def get_checkpoint_tree(self, name_or_run_id: str) -> dict[str | None, list[str]]:
        """The ids of each checkpoint's children, oldest first, by the id of their parent."""
        return self._drive(self.operations.tree(name_or_run_id))

    def diff_checkpoints(self, a: str, b: str) -> tuple[Change, ...]:
        """What turns the state of checkpoint *a* into that of *b*."""
        return self._drive(self.operations.diff(a, b))

    def history(self, name_or_run_id: str, scope: str = "") -> list[HistoryEntry]:
        """The checkpoints of a run, oldest first, each with what it changed and its state."""
        return self._drive(self.operations.history(name_or_run_id, scope))

    def blame(self, name_or_run_id: str, path: str, scope: str = "") -> CheckpointMetadata | None:
        """The checkpoint that last wrote the value at *path* (``plan`` or ``/plan/0/status``)."""
        return self._drive(self.operations.blame(name_or_run_id, path, scope))

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint. Those built on it can still be loaded."""
        return self._drive(self.operations.delete(checkpoint_id))

    def delete_run(self, run_id: str) -> int:
        """Remove a run with all its records; returns how many there were."""
        return self._drive(self.operations.delete_run(run_id))

    def verify(self, name_or_run_id: str | None = None) -> list[Verdict]:
        """Recompute every digest of one run, the runs of a name, or all; a verdict for each."""
        return self._drive(self.operations.verify(name_or_run_id))

    def cleanup_old_checkpoints(self, name_or_run_id: str) -> int:
        """Apply the retention rules now and free the space; returns how many went."""
        return self._drive(self.operations.cleanup(name_or_run_id))

    def pin(self, checkpoint_id: str) -> str:
        """Keep a checkpoint whatever the retention rules say."""
        return self._drive(self.operations.mark(checkpoint_id, "pin", True))

    def unpin(self, checkpoint_id: str) -> str:
        """Let the retention rules decide about a checkpoint again."""
        return self._drive(self.operations.mark(checkpoint_id, "pin", False))

    def release(self, checkpoint_id: str) -> str:
        """Let go of a checkpoint that was to be kept until released."""
        return self._drive(self.operations.mark(checkpoint_id, "release", True))

    def tag(self, checkpoint_id: str, *tags: str, remove: Sequence[str] = ()) -> str:
        """Give a checkpoint tags, or take some away."""
        return self._drive(self.operations.tag(checkpoint_id, tags, remove))

    def close(self) -> None:
        """Close the storage, if it was opened by this manager."""
        if self._owns_storage:
            self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class StateManager(_Manager):
    """`CheckpointManager`'s methods, awaited; each makes one hop to a thread of its own.

    Saves that are awaited at the same time go out in one commit. An awaited save ends when its
    append has settled, cancelled or not.

    >>> import asyncio
    >>> async def main():
    ...     async with StateManager("memory://") as manager:
    ...         await manager.save_checkpoint(State.new({"done": 1}, run_id="nightly"))
    ...         return (await manager.resume_from_latest("nightly"))["done"]
    >>> asyncio.run(main())
    1
    """

    def __init__(
        self,
        storage: Storage | str | None = None,
        checkpoint_frequency: int | None = None,
        checkpoint_interval: float | None = None,
        retention_count: int | None = None,
        hook_manager: HookManager | None = None,
        *,
        retention: Rules | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "fail",
    ) -> None:
        super().__init__(
            storage,
            checkpoint_frequency,
            checkpoint_interval,
            retention_count,
            hook_manager,
            retention=retention,
            encryption_key=encryption_key,
            old_keys=old_keys,
            on_save_failure=on_save_failure,
        )
        self._writer = Writer(self.operations.journal)

    async def _drive(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    result = await self._do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _do(self, step: Fire | Commit | Work | Pause) -> Any:
        if type(step) is Commit:
            return await see_through(self._writer.commit(step.request))
        if type(step) is Work:
            return await see_through(self._writer.call(step.call))
        if type(step) is Pause:
            return await asyncio.sleep(step.seconds)
        assert type(step) is Fire and self.operations.hooks is not None
        return await self.operations.hooks.trigger(step.event, step.agent_id, step.data)

    async def save_checkpoint(self, state: Saveable, force: bool = False) -> str:
        """See `CheckpointManager.save_checkpoint`."""
        return _said(await self._drive(self.operations.save(state, force=force)))

    async def save_subject(
        self, subject: Subject, *, force: bool = False, notes: Sequence[Note] = ()
    ) -> str:
        """See `CheckpointManager.save_subject`."""
        steps = self.operations.save_subject(subject, force=force, notes=tuple(notes))
        header = await self._drive(steps)
        return header.id if header is not None else ""

    async def append_notes(self, run_id: str, notes: Sequence[Note]) -> None:
        """See `CheckpointManager.append_notes`."""
        await self._drive(self.operations.append_notes(run_id, notes))

    async def load_checkpoint(self, checkpoint_id: str) -> Saveable:
        """See `CheckpointManager.load_checkpoint`."""
        return await self._drive(self.operations.load(checkpoint_id))

    async def resume_from_latest(self, name_or_run_id: str) -> Any:
        """See `CheckpointManager.resume_from_latest`."""
        return await self._drive(self.operations.resume(name_or_run_id))

    async def latest(self, name_or_run_id: str) -> CheckpointMetadata | None:
        """See `CheckpointManager.latest`."""
        return await self._drive(self.operations.latest(name_or_run_id))

    async def exists(self, checkpoint_id: str) -> bool:
        """See `CheckpointManager.exists`."""
        return await self._drive(self.operations.exists(checkpoint_id))

    async def list_checkpoints(
        self,
        name_or_run_id: str | None = None,
        *,
        scope: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[CheckpointMetadata]:
        """See `CheckpointManager.list_checkpoints`."""
        return await self._drive(
            self.operations.list(
                name_or_run_id,
                scope=scope,
                kind=kind,
                status=status,
                tag=tag,
                metadata=metadata,
                since=since,
                until=until,
                before=before,
                limit=limit,
            )
        )

    async def fork_from_checkpoint(self, checkpoint_id: str, run_id: str | None = None) -> Saveable:
        """See `CheckpointManager.fork_from_checkpoint`."""
        return await self._drive(self.operations.fork(checkpoint_id, run_id))

    async def get_checkpoint_tree(self, name_or_run_id: str) -> dict[str | None, list[str]]:
        """See `CheckpointManager.get_checkpoint_tree`."""
        return await self._drive(self.operations.tree(name_or_run_id))

    async def diff_checkpoints(self, a: str, b: str) -> tuple[Change, ...]:
        """See `CheckpointManager.diff_checkpoints`."""
        return await self._drive(self.operations.diff(a, b))

    async def history(self, name_or_run_id: str, scope: str = "") -> list[HistoryEntry]:
        """See `CheckpointManager.history`."""
        return await self._drive(self.operations.history(name_or_run_id, scope))

    async def blame(
        self, name_or_run_id: str, path: str, scope: str = ""
    ) -> CheckpointMetadata | None:
        """See `CheckpointManager.blame`."""
        return await self._drive(self.operations.blame(name_or_run_id, path, scope))

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """See `CheckpointManager.delete_checkpoint`."""
        return await self._drive(self.operations.delete(checkpoint_id))

    async def delete_run(self, run_id: str) -> int:
        """See `CheckpointManager.delete_run`."""
        return await self._drive(self.operations.delete_run(run_id))

    async def verify(self, name_or_run_id: str | None = None) -> list[Verdict]:
        """See `CheckpointManager.verify`."""
        return await self._drive(self.operations.verify(name_or_run_id))

    async def cleanup_old_checkpoints(self, name_or_run_id: str) -> int:
        """See `CheckpointManager.cleanup_old_checkpoints`."""
        return await self._drive(self.operations.cleanup(name_or_run_id))

    async def pin(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.pin`."""
        return await self._drive(self.operations.mark(checkpoint_id, "pin", True))

    async def unpin(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.unpin`."""
        return await self._drive(self.operations.mark(checkpoint_id, "pin", False))

    async def release(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.release`."""
        return await self._drive(self.operations.mark(checkpoint_id, "release", True))

    async def tag(self, checkpoint_id: str, *tags: str, remove: Sequence[str] = ()) -> str:
        """See `CheckpointManager.tag`."""
        return await self._drive(self.operations.tag(checkpoint_id, tags, remove))

    async def close(self) -> None:
        """Finish what is being saved; close the storage, if it was opened by this manager."""
        await asyncio.get_running_loop().run_in_executor(None, self._writer.close)
        if self._owns_storage:
            self.storage.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _said(checkpoint_id: str | None) -> str:
    """The id, empty if the save failed and was only warned of."""
    return checkpoint_id or ""


def saver_for(target: CheckpointManager | Storage | str | None) -> CheckpointManager:
    """The manager to save through: *target* itself, or one over that storage or address."""
    return target if isinstance(target, CheckpointManager) else CheckpointManager(target)


_state.find_saver = saver_for
