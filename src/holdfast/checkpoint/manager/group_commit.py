"""Group commit: requests of several threads go out in one append."""

from __future__ import annotations

import threading
from collections import deque

from holdfast.checkpoint.journal import Journal, Outcome, Request
from holdfast.errors import HoldfastError

__all__ = ["GroupCommit"]


class _Waiting:
    __slots__ = ("failure", "outcome", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.failure: HoldfastError | None = None


class GroupCommit:
    """Lets one of several threads write for all that wait.

    A lone caller writes on its own thread without waiting for company. Whoever gets the lock
    writes for all that have come meanwhile. Nothing but the lock says that a thread writes, so an
    exception from a signal handler leaves nothing busy: those who wait write for themselves.
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
            # If another thread is faster, this one waits and then writes alone.
            with self._lock:
                return self._journal.commit([request])[0]
        waiting = _Waiting(request)
        try:
            self._queue.append(waiting)
            with self._lock:
                if waiting.outcome is None and waiting.failure is None:
                    self._write(waiting)
        except BaseException:
            try:
                self._queue.remove(waiting)
            except ValueError:
                with self._lock:  # another thread may be writing it
                    pass
            raise
        if waiting.failure is not None:
            raise waiting.failure
        assert waiting.outcome is not None
        return waiting.outcome

    def _write(self, leader: _Waiting) -> None:
        """Write for all that wait, *leader* included."""
        group = [leader]
        while self._queue:
            other = self._queue.popleft()
            if other is not leader:
                group.append(other)
        try:
            outcomes = self._journal.commit([waiting.request for waiting in group])
        except HoldfastError as error:
            for waiting in group:
                waiting.failure = error
            return
        for waiting, outcome in zip(group, outcomes, strict=True):
            waiting.outcome = outcome
