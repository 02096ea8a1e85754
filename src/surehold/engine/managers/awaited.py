"""The manager that is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from surehold.core.closing import AsyncClosing
from surehold.core.driving import drive_async
from surehold.engine import commit as operations
from surehold.engine.commit import (
    Commit,
    Face,
    Fire,
    Pause,
    Step,
    Steps,
    Work,
    Writer,
    await_uncancelled,
    in_thread,
)
from surehold.engine.journal import Saveable
from surehold.engine.managers.blocking import CheckpointManager
from surehold.engine.managers.setup import Manager

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[CheckpointManager, P], T],
) -> Callable[Concatenate[AsyncCheckpointManager, P], Coroutine[Any, Any, T]]:
    """*method*, which returns what its manager performs, for a manager that awaits it."""

    @wraps(method)
    async def awaited(manager: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        performing: Any = method(manager, *args, **kwargs)
        return await performing  # type: ignore[no-any-return]

    return awaited


class AsyncCheckpointManager(Manager, AsyncClosing):
    """`CheckpointManager`'s methods, awaited; each hops once to its own thread.

    Saves that are awaited at the same time go out in one commit. An awaited save ends when its
    append has settled, cancelled or not.

    >>> import asyncio
    >>> from surehold import State
    >>> async def main():
    ...     async with AsyncCheckpointManager("memory://") as manager:
    ...         await manager.save_checkpoint(State.new({"done": 1}, run_id="nightly"))
    ...         return (await manager.resume_from_latest("nightly"))["done"]
    >>> asyncio.run(main())
    1
    """

    def _use(self, face: Face) -> None:
        super()._use(face)
        self._writer = Writer(face.engine.commits)
        face.writers.add(self._writer)

    async def perform(self, steps: Steps[T]) -> T:
        """See `CheckpointManager.perform`."""
        return await drive_async(steps, self._do)

    async def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """See `CheckpointManager.call`."""
        return await await_uncancelled(self._writer.call(partial(function, *args, **kwargs)))

    async def _do(self, step: Step) -> Any:
        if type(step) is Commit:
            return await await_uncancelled(self._writer.commit(self.face.journal, step.request))
        if type(step) is Work:
            return await await_uncancelled(self._writer.call(step.call))
        if type(step) is Pause:
            return await asyncio.sleep(step.seconds)
        assert type(step) is Fire and self.face.hooks is not None
        return await self.face.hooks.trigger(step.event, step.agent_id, step.data)

    save_checkpoint = _awaited(CheckpointManager.save_checkpoint)
    save_draft = _awaited(CheckpointManager.save_draft)
    append_notes = _awaited(CheckpointManager.append_notes)
    resume_from_latest = _awaited(CheckpointManager.resume_from_latest)
    latest = _awaited(CheckpointManager.latest)
    exists = _awaited(CheckpointManager.exists)
    list_checkpoints = _awaited(CheckpointManager.list_checkpoints)
    fork_from_checkpoint = _awaited(CheckpointManager.fork_from_checkpoint)
    get_checkpoint_tree = _awaited(CheckpointManager.get_checkpoint_tree)
    diff_checkpoints = _awaited(CheckpointManager.diff_checkpoints)
    history = _awaited(CheckpointManager.history)
    blame = _awaited(CheckpointManager.blame)
    delete_checkpoint = _awaited(CheckpointManager.delete_checkpoint)
    delete_run = _awaited(CheckpointManager.delete_run)
    verify = _awaited(CheckpointManager.verify)
    repair = _awaited(CheckpointManager.repair)
    cleanup_old_checkpoints = _awaited(CheckpointManager.cleanup_old_checkpoints)
    pin = _awaited(CheckpointManager.pin)
    unpin = _awaited(CheckpointManager.unpin)
    release = _awaited(CheckpointManager.release)
    tag = _awaited(CheckpointManager.tag)
    export_run = _awaited(CheckpointManager.export_run)
    import_run = _awaited(CheckpointManager.import_run)
    copy_run = _awaited(CheckpointManager.copy_run)
    export_json = _awaited(CheckpointManager.export_json)
    rotate_keys = _awaited(CheckpointManager.rotate_keys)
    encrypt_runs = _awaited(CheckpointManager.encrypt_runs)
    shred_run = _awaited(CheckpointManager.shred_run)

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
            return await self.perform(operations.load.load_values(self.face, checkpoint_id, keys))
        return await self.perform(operations.load.load(self.face, checkpoint_id))

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
        await in_thread(self._close)

    def _close(self) -> None:
        self.finish()
        if self._owns_storage:
            self.storage.close()
