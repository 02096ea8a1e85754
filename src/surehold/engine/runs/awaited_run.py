"""The async face of a run that this process holds: one hop a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from surehold.core.state import State
from surehold.engine.commit import await_uncancelled, in_thread
from surehold.engine.journal import CheckpointDraft, Note
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import ConflictError, StorageError

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun


class AwaitedRun:
    """The methods of `OpenRun`, awaited; a lost lease cancels the watched task."""

    def __init__(
        self, run: OpenRun, manager: AsyncCheckpointManager | None, *, alone: bool
    ) -> None:
        self._run = run
        self._manager = manager
        self._owns_manager = manager is None
        self._alone = alone
        self._writes_behind = manager is not None
        self._behind: list[asyncio.Task[None]] = []
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False

    @property
    def manager(self) -> AsyncCheckpointManager:
        """The manager that is awaited."""
        if self._manager is None:
            self._manager = AsyncCheckpointManager.of(self._run.manager.face)
        return self._manager

    async def open(self) -> None:
        """Take the run, or raise `LeaseHeldError`, and watch the current task."""
        self.watch()
        try:
            await in_thread(self._run.open)
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let others have the run."""
        if self._behind:
            await await_uncancelled(asyncio.ensure_future(asyncio.wait(self._behind)))
            self._behind = [task for task in self._behind if task.exception() is None]
        self._task = None
        await in_thread(self._run.close)

    def finish(self) -> None:
        """End the thread that this face has started."""
        if self._owns_manager and self._manager is not None:
            self._manager.finish()

    # The task that executes the run

    def watch(self) -> None:
        """Cancel the current task if the lease is lost, until `unwatch`."""
        task = asyncio.current_task()
        assert task is not None
        self._task = (asyncio.get_running_loop(), task)
        if self._run.lost is not None:
            self._cancel()

    def unwatch(self, error: BaseException | None) -> BaseException | None:
        """Leave the task alone; return the error that its code ended with.

        The cancellation for a lost lease is taken back, and is a `ConflictError`.
        """
        watched, self._task = self._task, None
        if watched is None or not self._cancelled:
            return error
        self._cancelled = False
        cancelled = isinstance(error, asyncio.CancelledError)
        if watched[1].uncancel() or not cancelled:  # someone else has cancelled it too
            return error
        return self._run.lose(ConflictError("the run's lease was lost"))

    def lose(self) -> None:
        """Cancel the watched task; from any thread."""
        if self._task is not None:
            self._task[0].call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task[1].cancel("the run's lease was lost")

    async def load(self) -> State | None:
        """See `OpenRun.load`."""
        return await self.manager.perform(self._run.loading())

    # Writing

    async def save(self, draft: CheckpointDraft, *, notes: Sequence[Note] = ()) -> str:
        """See `OpenRun.save`."""
        run = self._run
        run.check()
        if run.spans is not None:
            draft = run.traced(draft)
        run.scopes |= {draft.place.scope} - {""}
        if not draft.place.scope:
            run.waits = draft.place.status == "waiting"
        await self._settle()
        if (again := run.waits_already(draft, notes)) is not None:
            return again.id
        # Between two steps of a run that has the event loop to itself nothing else waits for it,
        # so that going to the writer's thread and back would only cost time.
        if self._alone and not draft.place.scope and run.hook_manager is None:
            return run.save(draft, notes=notes, force=True)
        try:
            return await self.manager.save_draft(
                draft, force=True, notes=notes, epoch=run.lease_epoch
            )
        except ConflictError as error:
            raise run.lose(error) from error

    async def record(self, notes: Sequence[Note], wait: bool = True) -> None:
        """Append *notes*; without *wait*, before anything that is written after them.

        They are durable when this returns, cancelled or not. Without notes it waits for those
        before.
        """
        self._run.check()
        try:
            await self._record(notes, wait)
        except StorageError as error:
            raise self._run.leaving.mark(error) from error.__cause__

    async def _record(self, notes: Sequence[Note], wait: bool) -> None:
        run = self._run
        if not notes:
            await self._settle()
            return
        if run.begin is not None:
            await in_thread(run.begin_now)
        sent = asyncio.ensure_future(self._send(notes, tuple(self._behind)))
        if not wait and self._writes_behind:
            self._behind.append(sent)
            await asyncio.sleep(0)  # it is queued before anything that follows
            return
        await await_uncancelled(sent)
        await self._settle()

    async def _send(self, notes: Sequence[Note], earlier: Sequence[asyncio.Task[None]]) -> None:
        """Append *notes* after those sent *earlier*; raise the error if those failed.

        A record must not be stored without those it depends on, be it for want of room.
        """
        run, postponed = self._run, tuple[Note, ...]()
        if earlier:
            await asyncio.wait(earlier)
            for task in earlier:
                task.result()
            postponed = run.ledger.deferred()
        try:
            await self.manager.append_notes(run.run_id, (*postponed, *notes), epoch=run.lease_epoch)
        except ConflictError as error:
            raise run.lose(error) from error
        except StorageError as error:
            if not run.ledger.postpone((*postponed, *notes), error):
                run.ledger.defer_again(postponed)
                raise

    async def _settle(self) -> None:
        """Wait for what was sent without waiting, and raise its errors."""
        while self._behind:
            first = self._behind[0]
            await asyncio.wait([first])
            if first in self._behind:  # another part of the step may have waited for it as well
                self._behind.remove(first)
            first.result()

    async def end_scopes(self) -> None:
        """See `OpenRun.end_scopes`."""
        if self._run.end_scopes():
            await asyncio.to_thread(self._run.hide_ended)
