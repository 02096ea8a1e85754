"""`AsyncGroup`: the methods of a group, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from holdfast.checkpoint.groups.definition import Group
from holdfast.checkpoint.groups.values import GroupCheckpoint, MemberStatus
from holdfast.checkpoint.journal import Saveable
from holdfast.checkpoint.manager import Manager, await_uncancelled
from holdfast.core.closing import AsyncClosing
from holdfast.storage.base import Storage

P = ParamSpec("P")
T = TypeVar("T")


class AsyncGroup(AsyncClosing):
    """`Group`'s methods, awaited; each is carried out in a thread.

    It has settled when it returns, cancelled or not.

    >>> import asyncio
    >>> from holdfast import AsyncCheckpointManager, State
    >>> async def main():
    ...     async with AsyncCheckpointManager("memory://") as manager:
    ...         await manager.save_checkpoint(State.new({"n": 1}, run_id="planner"))
    ...         crew = AsyncGroup("crew", ["planner"], storage=manager)
    ...         taken = await crew.checkpoint()
    ...         return [*await crew.restore(taken.id)]
    >>> asyncio.run(main())
    ['planner']
    """

    def __init__(
        self,
        name: str,
        members: Iterable[object] = (),
        *,
        storage: Manager | Storage | str | None = None,
    ) -> None:
        self._group = Group(name, members, storage=storage)
        self.name, self.members = self._group.name, self._group.members

    async def checkpoint(
        self, states: Iterable[Saveable] = (), *, at_step: int | None = None
    ) -> GroupCheckpoint:
        """See `Group.checkpoint`."""
        return await _in_thread(self._group.checkpoint, states, at_step=at_step)

    async def checkpoints(self) -> list[GroupCheckpoint]:
        """See `Group.checkpoints`."""
        return await _in_thread(self._group.checkpoints)

    async def latest(self) -> GroupCheckpoint | None:
        """See `Group.latest`."""
        return await _in_thread(self._group.latest)

    async def status(self) -> list[MemberStatus]:
        """See `Group.status`."""
        return await _in_thread(self._group.status)

    async def restore(self, checkpoint_id: str | None = None) -> dict[str, Saveable]:
        """See `Group.restore`."""
        return await _in_thread(self._group.restore, checkpoint_id)

    async def rewind(self, checkpoint_id: str | None = None) -> GroupCheckpoint:
        """See `Group.rewind`."""
        return await _in_thread(self._group.rewind, checkpoint_id)

    async def fork(self, name: str, checkpoint_id: str | None = None) -> AsyncGroup:
        """See `Group.fork`."""
        made = AsyncGroup.__new__(AsyncGroup)
        made._group = await _in_thread(self._group.fork, name, checkpoint_id)
        made.name, made.members = made._group.name, made._group.members
        return made

    async def pin(self, checkpoint_id: str) -> None:
        """See `Group.pin`."""
        await _in_thread(self._group.pin, checkpoint_id)

    async def unpin(self, checkpoint_id: str) -> None:
        """See `Group.unpin`."""
        await _in_thread(self._group.unpin, checkpoint_id)

    async def prune(self, keep: int) -> list[GroupCheckpoint]:
        """See `Group.prune`."""
        return await _in_thread(self._group.prune, keep)

    async def delete(self, checkpoint_id: str) -> None:
        """See `Group.delete`."""
        await _in_thread(self._group.delete, checkpoint_id)

    async def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """See `Group.export`."""
        await _in_thread(self._group.export, path, overwrite=overwrite)

    async def close(self) -> None:
        """See `Group.close`."""
        await _in_thread(self._group.close)


async def _in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs)))
