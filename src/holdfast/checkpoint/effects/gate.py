"""Gates: a limit on simultaneous calls, over all threads and loops of a process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from holdfast.core.policy import RetryPolicy


class _Gate:
    """Lets *limit* callers pass at a time, in the order in which they come."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._lock = threading.Lock()
        self._queue: deque[Future[None]] = deque()

    def enter(self) -> Future[None] | None:
        """Pass at once, or return what to wait for."""
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            turn: Future[None] = Future()
            self._queue.append(turn)
            return turn

    def leave(self) -> None:
        """Let the next caller pass."""
        with self._lock:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1

    def give_up(self, turn: Future[None]) -> None:
        """Withdraw a wait; a turn that has come meanwhile goes to the next caller."""
        if not turn.cancel():
            self.leave()


_gates: WeakKeyDictionary[RetryPolicy, _Gate] = WeakKeyDictionary()
_making = threading.Lock()


def _gate_of(policy: RetryPolicy) -> _Gate | None:
    if policy.concurrency is None:
        return None
    with _making:
        gate = _gates.get(policy)
        if gate is None:
            gate = _gates[policy] = _Gate(policy.concurrency)
        return gate


@asynccontextmanager
async def passing(policy: RetryPolicy) -> AsyncIterator[None]:
    """Wait until the *policy* allows one more call, and make it in the block."""
    gate = _gate_of(policy)
    if gate is None:
        yield
        return
    turn = gate.enter()
    if turn is not None:
        try:
            await asyncio.shield(asyncio.wrap_future(turn))
        except BaseException:
            gate.give_up(turn)
            raise
    try:
        yield
    finally:
        gate.leave()


@contextmanager
def passing_now(policy: RetryPolicy) -> Iterator[None]:
    """`passing` on this thread, which waits."""
    gate = _gate_of(policy)
    if gate is None:
        yield
        return
    turn = gate.enter()
    if turn is not None:
        try:
            turn.result()
        except BaseException:
            gate.give_up(turn)
            raise
    try:
        yield
    finally:
        gate.leave()
