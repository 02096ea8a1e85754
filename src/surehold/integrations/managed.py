"""The manager of an integration, blocking and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

from surehold.core.closing import Closing
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager, manager_for
from surehold.storage.base import Storage

T = TypeVar("T")


class Managed(Closing):
    """Opens a manager, unless one is given, and closes what it opened."""

    def _manage(self, storage: CheckpointManager | Storage | str | None) -> None:
        self.manager = manager_for(storage)
        self._awaited = AsyncCheckpointManager.of(self.manager.face)
        self._closes = not isinstance(storage, CheckpointManager)

    @property
    def awaited(self) -> AsyncCheckpointManager:
        """The manager that is awaited."""
        return self._awaited

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking *function*, in the order of calls, under asyncio or trio."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return await _call_in_thread(partial(function, *args))
        return await self._awaited.call(function, *args)

    def close(self) -> None:
        """Close the storage, if it was opened by this object."""
        self._awaited.finish()
        if self._closes:
            self.manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.close()


async def _call_in_thread(call: Callable[[], T]) -> T:
    """*call*, one at a time, to its end; a cancellation is raised after it."""
    import anyio
    from anyio.lowlevel import RunVar, checkpoint_if_cancelled

    one: RunVar[anyio.CapacityLimiter] = RunVar("surehold_limiter")
    await checkpoint_if_cancelled()
    limiter = one.get(None)
    if limiter is None:
        one.set(limiter := anyio.CapacityLimiter(1))
    made: list[T] = []
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(lambda: made.append(call()), limiter=limiter)
    return made[0]
