"""Group commit: requests of several threads go out in one append."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

from surehold.engine.journal import Journal, Outcome, Request
from surehold.errors import SureholdError

_LOOK_AGAIN = 0.05
"""Seconds after which a thread that waits looks if it has to write itself."""


class _Waiting:
    __slots__ = ("failure", "outcome", "request", "settled")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.failure: SureholdError | None = None
        self.settled = threading.Lock()
        """Held until the request was written, or its thread has to look again."""
        self.settled.acquire()

    @property
    def is_settled(self) -> bool:
        return self.outcome is not None or self.failure is not None

    def wake(self) -> None:
        with suppress(RuntimeError):  # another thread was faster
            self.settled.release()


class GroupCommit:
    """Lets one of several threads write for all that wait.

    A lone caller writes on its own thread without waiting for company. All others queue, and the
    first of them gets the lock next and writes for all that have come meanwhile. Nothing but the
    lock says that a thread writes, so an exception from a signal handler leaves nothing busy:
    those who wait look again soon, and write for themselves.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.renew()

    def renew(self) -> None:
        """Start with a free lock and nothing queued, as in the child of a fork."""
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()

    def commit(self, request: Request) -> Outcome:
        """Write *request*; return when it is durable."""
        if not self._queue and not self._lock.locked():
            with self._lock:
                return self._journal.commit((request,))[0]
        waiting = _Waiting(request)
        try:
            self._queue.append(waiting)
            while not waiting.is_settled:
                if self._must_write(waiting):
                    with self._lock:
                        if not waiting.is_settled:
                            self._write(waiting)
                else:
                    waiting.settled.acquire(timeout=_LOOK_AGAIN)
        except BaseException:
            self._leave(waiting)
            raise
        if waiting.failure is not None:
            raise waiting.failure
        assert waiting.outcome is not None
        return waiting.outcome

    def _must_write(self, waiting: _Waiting) -> bool:
        """True if no other thread writes this request, now or next."""
        try:
            if self._queue[0] is waiting:
                return True
        except IndexError:
            pass
        # Whoever took it out of the queue has the lock, or was interrupted.
        return not self._lock.locked() and waiting not in self._queue

    def _leave(self, waiting: _Waiting) -> None:
        """Withdraw a request whose thread was interrupted."""
        try:
            self._queue.remove(waiting)
        except ValueError:
            with self._lock:  # another thread may be writing it
                pass
        for other in tuple(self._queue):
            other.wake()

    def _write(self, leader: _Waiting) -> None:
        """Write for all that wait, *leader* included."""
        group = [leader]
        while self._queue:
            other = self._queue.popleft()
            if other is not leader:
                group.append(other)
        try:
            outcomes = self._journal.commit([waiting.request for waiting in group])
        except SureholdError as error:
            for waiting in group:
                waiting.failure = error
        else:
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.outcome = outcome
        for waiting in group:
            waiting.wake()
