"""The manager that is awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast.checkpoint import crypto, operations, transfer
from holdfast.checkpoint.journal import CheckpointDraft, Loaded, Note, Saveable
from holdfast.checkpoint.manager.setup import Manager
from holdfast.checkpoint.manager.writer_thread import await_uncancelled
from holdfast.checkpoint.operations import Commit, Fire, Pause, Step, Steps, Work
from holdfast.checkpoint.transfer import LIMITS
from holdfast.core.closing import AsyncClosing
from holdfast.storage.base import RecordQuery, Storage

if TYPE_CHECKING:  # and what a method works with is loaded when it is called
    from holdfast.checkpoint.crypto import Key
    from holdfast.checkpoint.inspect import Change, CheckpointMetadata, HistoryEntry
    from holdfast.checkpoint.repair import RepairReport, RunVerdict
    from holdfast.checkpoint.transfer import ImportLimits, Manifest, Redact, Style

T = TypeVar("T")


class AsyncCheckpointManager(Manager, AsyncClosing):
    """`CheckpointManager`'s methods, awaited; each hops once to its own thread.

    Saves that are awaited at the same time go out in one commit. An awaited save ends when its
    append has settled, cancelled or not.

    >>> import asyncio
    >>> from holdfast import State
    >>> async def main():
    ...     async with AsyncCheckpointManager("memory://") as manager:
    ...         await manager.save_checkpoint(State.new({"done": 1}, run_id="nightly"))
    ...         return (await manager.resume_from_latest("nightly"))["done"]
    >>> asyncio.run(main())
    1
    """

    async def perform(self, steps: Steps[T]) -> T:
        """See `CheckpointManager.perform`."""
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

    async def _do(self, step: Step) -> Any:
        if type(step) is Commit:
            return await await_uncancelled(self._writer.commit(step.request))
        if type(step) is Work:
            return await await_uncancelled(self._writer.call(step.call))
        if type(step) is Pause:
            return await asyncio.sleep(step.seconds)
        assert type(step) is Fire and self.engine.hooks is not None
        return await self.engine.hooks.trigger(step.event, step.agent_id, step.data)

    async def save_checkpoint(self, state: Saveable, force: bool = False) -> str:
        """See `CheckpointManager.save_checkpoint`."""
        return await self.perform(operations.save_state(self.engine, state, force=force))

    async def save_draft(
        self, draft: CheckpointDraft, *, force: bool = False, notes: Sequence[Note] = ()
    ) -> str:
        """See `CheckpointManager.save_draft`."""
        steps = operations.save_draft(self.engine, draft, force=force, notes=notes)
        header = await self.perform(steps)
        return header.id if header is not None else ""

    async def append_notes(
        self, run_id: str, notes: Sequence[Note], head: int | None = None
    ) -> None:
        """See `CheckpointManager.append_notes`."""
        await self.perform(operations.append_notes(self.engine, run_id, notes, head))

    @overload
    async def load_checkpoint(self, checkpoint_id: str) -> Saveable: ...

    @overload
    async def load_checkpoint(
        self, checkpoint_id: str, *, keys: Sequence[str]
    ) -> dict[str, Any]: ...

    async def load_checkpoint(
        self, checkpoint_id: str, *, keys: Sequence[str] | None = None
    ) -> Saveable | dict[str, Any]:
        """See `CheckpointManager.load_checkpoint`."""
        if keys is not None:
            return await self.perform(operations.load.load_values(self.engine, checkpoint_id, keys))
        return await self.perform(operations.load.load(self.engine, checkpoint_id))

    async def resume_from_latest(self, name_or_run_id: str) -> Any:
        """See `CheckpointManager.resume_from_latest`."""
        return await self.perform(operations.load.resume(self.engine, name_or_run_id))

    async def latest(self, name_or_run_id: str) -> CheckpointMetadata | None:
        """See `CheckpointManager.latest`."""
        return await self.perform(operations.read.latest(self.engine, name_or_run_id))

    async def exists(self, checkpoint_id: str) -> bool:
        """See `CheckpointManager.exists`."""
        return await self.perform(operations.read.exists(self.engine, checkpoint_id))

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
        return await self.perform(
            operations.read.checkpoints(
                self.engine,
                name_or_run_id,
                RecordQuery(
                    scope=scope,
                    kind=kind,
                    status=status,
                    tag=tag,
                    metadata=metadata,
                    since=since,
                    until=until,
                    before=before,
                    limit=limit,
                ),
            )
        )

    async def fork_from_checkpoint(
        self,
        checkpoint_id: str,
        run_id: str | None = None,
        *,
        change: Callable[[Loaded, CheckpointDraft], CheckpointDraft] | None = None,
    ) -> Saveable:
        """See `CheckpointManager.fork_from_checkpoint`."""
        return await self.perform(operations.load.fork(self.engine, checkpoint_id, run_id, change))

    async def get_checkpoint_tree(self, name_or_run_id: str) -> dict[str | None, list[str]]:
        """See `CheckpointManager.get_checkpoint_tree`."""
        return await self.perform(operations.read.tree(self.engine, name_or_run_id))

    async def diff_checkpoints(self, a: str, b: str) -> tuple[Change, ...]:
        """See `CheckpointManager.diff_checkpoints`."""
        return await self.perform(operations.read.diff(self.engine, a, b))

    async def history(self, name_or_run_id: str, scope: str = "") -> list[HistoryEntry]:
        """See `CheckpointManager.history`."""
        return await self.perform(operations.read.history(self.engine, name_or_run_id, scope))

    async def blame(
        self, name_or_run_id: str, path: str, scope: str = ""
    ) -> CheckpointMetadata | None:
        """See `CheckpointManager.blame`."""
        return await self.perform(operations.read.blame(self.engine, name_or_run_id, path, scope))

    async def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """See `CheckpointManager.delete_checkpoint`."""
        return await self.perform(operations.delete.delete_checkpoint(self.engine, checkpoint_id))

    async def delete_run(self, run_id: str) -> int:
        """See `CheckpointManager.delete_run`."""
        return await self.perform(operations.delete.delete_run(self.engine, run_id))

    async def verify(self, name_or_run_id: str | None = None) -> list[RunVerdict]:
        """See `CheckpointManager.verify`."""
        return await self.perform(operations.read.verify(self.engine, name_or_run_id))

    async def repair(self, run_id: str | None = None, *, dry_run: bool = False) -> RepairReport:
        """See `CheckpointManager.repair`."""
        return await self.perform(operations.read.repair(self.engine, run_id, dry_run=dry_run))

    async def cleanup_old_checkpoints(self, name_or_run_id: str) -> int:
        """See `CheckpointManager.cleanup_old_checkpoints`."""
        return await self.perform(operations.delete.cleanup(self.engine, name_or_run_id))

    async def pin(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.pin`."""
        return await self.perform(operations.delete.mark(self.engine, checkpoint_id, "pin", True))

    async def unpin(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.unpin`."""
        return await self.perform(operations.delete.mark(self.engine, checkpoint_id, "pin", False))

    async def release(self, checkpoint_id: str) -> str:
        """See `CheckpointManager.release`."""
        return await self.perform(
            operations.delete.mark(self.engine, checkpoint_id, "release", True)
        )

    async def tag(self, checkpoint_id: str, *tags: str, remove: Sequence[str] = ()) -> str:
        """See `CheckpointManager.tag`."""
        return await self.perform(operations.delete.tag(self.engine, checkpoint_id, tags, remove))

    async def export_run(
        self,
        run_id: str,
        path: str | os.PathLike[str],
        *,
        redact: Redact | None = None,
        encryption_key: Key | None = None,
        decrypt: bool = False,
        overwrite: bool = False,
    ) -> Manifest:
        """See `CheckpointManager.export_run`."""
        return await self.perform(
            transfer.runs.export_run(
                self.engine,
                run_id,
                path,
                redact=redact,
                encryption_key=encryption_key,
                decrypt=decrypt,
                overwrite=overwrite,
            )
        )

    async def import_run(
        self,
        path: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        encryption_key: Key | None = None,
        limits: ImportLimits = LIMITS,
    ) -> str:
        """See `CheckpointManager.import_run`."""
        return await self.perform(
            transfer.runs.import_run(
                self.engine, path, run_id, encryption_key=encryption_key, limits=limits
            )
        )

    async def copy_run(self, run_id: str, to: Storage | str) -> int:
        """See `CheckpointManager.copy_run`."""
        return await self.perform(transfer.runs.copy_run(self.engine, run_id, to))

    async def export_json(self, run_or_checkpoint_id: str, style: Style = "agent") -> str:
        """See `CheckpointManager.export_json`."""
        steps = transfer.runs.export_json(self.engine, run_or_checkpoint_id, style)
        return await self.perform(steps)

    async def rotate_keys(self, name_or_run_id: str | None = None) -> int:
        """See `CheckpointManager.rotate_keys`."""
        return await self.perform(crypto.rotation.rotate_keys(self.engine, name_or_run_id))

    async def encrypt_runs(
        self,
        name_or_run_id: str | None = None,
        *,
        scratch: str | os.PathLike[str] = ".holdfast/encrypting",
    ) -> list[str]:
        """See `CheckpointManager.encrypt_runs`."""
        return await self.perform(transfer.encrypt_runs(self.engine, name_or_run_id, Path(scratch)))

    async def shred_run(self, run_id: str) -> bool:
        """See `CheckpointManager.shred_run`."""
        return await self.perform(crypto.rotation.shred_run(self.engine, run_id))

    def flush(self) -> None:
        """Send what the running loop has asked for so far, before its turn ends."""
        self._writer.flush()

    def finish(self) -> None:
        """Block until everything asked for is stored, and end the manager's thread.

        For synchronous owners; `close` does this too. The storage stays open.
        """
        self._writer.close()

    async def close(self) -> None:
        """Finish what is being saved; close the storage, if it was opened by this manager."""
        await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(self._close)))

    def _close(self) -> None:
        self.finish()
        if self._owns_storage:
            self.storage.close()


StateManager = AsyncCheckpointManager
"""The same class as `AsyncCheckpointManager`, by its shorter name."""
