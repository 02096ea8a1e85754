"""Group commit: what several threads want written at once goes out in one append."""

from __future__ import annotations

import threading

from holdfast.checkpoint.journal import Journal, Outcome, Request

__all__ = ["GroupCommit"]


class _Waiting:
    __slots__ = ("failure", "leads", "outcome", "request", "woken")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.outcome: Outcome | None = None
        self.failure: BaseException | None = None
        self.leads = False
        """Whether it was woken to write for all that wait, itself included."""
        self.woken = threading.Event()


class GroupCommit:
    """Lets one of several threads write for all that wait.

    A lone caller writes on its own thread, without waiting for company. Whoever has written wakes
    the next one, which writes for all that have come meanwhile.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._queue: list[_Waiting] = []
        self._busy = False

    def commit(self, request: Request) -> Outcome:
        """Write *request*; return when it is durable."""
        with self._lock:
            waiting = _Waiting(request) if self._busy else None
            if waiting is not None:
                self._queue.append(waiting)
            self._busy = True
        if waiting is None:
            try:
                return self._journal.commit([request])[0]
            finally:
                self._pass_on()
        waiting.woken.wait()
        if waiting.leads:
            self._write_for_all()
        if waiting.failure is not None:
            raise waiting.failure
        assert waiting.outcome is not None
        return waiting.outcome

    def _pass_on(self) -> None:
        with self._lock:
            self._busy = bool(self._queue)
            if self._busy:
                self._queue[0].leads = True
                self._queue[0].woken.set()

    def _write_for_all(self) -> None:
        with self._lock:
            group, self._queue = self._queue, []
        try:
            outcomes = self._journal.commit([waiting.request for waiting in group])
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.outcome = outcome
        except BaseException as error:
            for waiting in group:
                waiting.failure = error
        finally:
            self._pass_on()
            for waiting in group:
                waiting.woken.set()
