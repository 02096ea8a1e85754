"""`AsyncGroup`: the methods of a group, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from surehold.core.closing import AsyncClosing
from surehold.engine.commit import await_uncancelled
from surehold.engine.groups.definition import Group, Target

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Group, P], T],
) -> Callable[Concatenate[AsyncGroup, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def awaited(group: AsyncGroup, /, *args: P.args, **kwargs: P.kwargs) -> T:
        done = asyncio.to_thread(method, group._group, *args, **kwargs)
        return await await_uncancelled(asyncio.ensure_future(done))

    return awaited


class AsyncGroup(AsyncClosing):
    """`Group`'s methods, awaited; each is carried out in a thread.

    It has settled when it returns, cancelled or not.

    >>> import asyncio
    >>> from surehold import AsyncCheckpointManager, State
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
        self, name: str, members: Iterable[object] = (), *, storage: Target = None
    ) -> None:
        self._group = Group(name, members, storage=storage)
        self.name, self.members = self._group.name, self._group.members

    checkpoint = _awaited(Group.checkpoint)
    checkpoints = _awaited(Group.checkpoints)
    latest = _awaited(Group.latest)
    status = _awaited(Group.status)
    restore = _awaited(Group.restore)
    rewind = _awaited(Group.rewind)
    pin = _awaited(Group.pin)
    unpin = _awaited(Group.unpin)
    prune = _awaited(Group.prune)
    delete = _awaited(Group.delete)
    export = _awaited(Group.export)
    close = _awaited(Group.close)

    async def fork(self, name: str, checkpoint_id: str | None = None) -> AsyncGroup:
        """See `Group.fork`."""
        made = AsyncGroup.__new__(AsyncGroup)
        made._group = await _awaited(Group.fork)(self, name, checkpoint_id)
        made.name, made.members = made._group.name, made._group.members
        return made
