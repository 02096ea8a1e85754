"""Gates: a limit on simultaneous calls, over all threads and loops of a process."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from surehold.core.policy import RetryPolicy


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

    def leave(self, entered: Future[None] | None) -> None:
        """Let the next caller pass; one that still waits itself leaves the queue."""
        if entered is not None and entered.cancel():
            return
        with self._lock:
            while self._queue:
                turn = self._queue.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_result(None)
                    return
            self._free += 1


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


@contextmanager
def _turn(policy: RetryPolicy) -> Iterator[Future[None] | None]:
    """Queue for a call, and let the next one pass at the end; gives what to wait for."""
    gate = _gate_of(policy)
    if gate is None:
        yield None
        return
    turn = gate.enter()
    try:
        yield turn
    finally:
        gate.leave(turn)


@asynccontextmanager
async def passing(policy: RetryPolicy) -> AsyncIterator[None]:
    """Wait until the *policy* allows one more call, and make it in the block."""
    with _turn(policy) as turn:
        if turn is not None:
            await asyncio.shield(asyncio.wrap_future(turn))
        yield


@contextmanager
def passing_now(policy: RetryPolicy) -> Iterator[None]:
    """`passing` on this thread, which waits."""
    with _turn(policy) as turn:
        if turn is not None:
            turn.result()
        yield
