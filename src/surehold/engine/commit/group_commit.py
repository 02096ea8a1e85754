"""Group commit: requests of threads and event loops go out in one append."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from surehold.engine.commit.steps import Commit, Fire, Pause, Step, Steps, Work
from surehold.engine.journal import Journal, Outcome, Request, Sent, commit
from surehold.errors import SureholdError

if TYPE_CHECKING:
    from surehold.engine.commit.face import Face

T = TypeVar("T")

_LOOK_AGAIN = 0.05
"""Seconds after which a thread that waits looks if it has to write itself."""
_LONG = 0.0007
"""Seconds of an append after which another one may begin beside it."""
_LEADERS = 6
"""Most appends at once, on media where one need not wait for another."""


class _Waiting:
    __slots__ = ("failure", "outcomes", "runs", "sent", "settled")

    def __init__(self, sent: Sequence[Sent]) -> None:
        self.sent = sent
        self.runs = {(journal, request.run_id) for journal, request in sent}
        self.outcomes: list[Outcome] | None = None
        self.failure: SureholdError | None = None
        self.settled = threading.Lock()
        """Held until the requests were written, or their thread has to look again."""
        self.settled.acquire()

    @property
    def is_settled(self) -> bool:
        return self.outcomes is not None or self.failure is not None

    def wake(self) -> None:
        with suppress(RuntimeError):  # another thread was faster
            self.settled.release()


class _Leader:
    """The right to append, of one thread at a time; held exactly while the lock is."""

    __slots__ = ("group", "lock", "since")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.group: Sequence[_Waiting] = ()
        """The callers whose requests are being written."""
        self.since = 0.0


class GroupCommit:
    """Lets one of several threads write for all that wait.

    A lone caller writes on its own thread without waiting for company. All others queue, and the
    first of them gets the lock next and writes for all that have come meanwhile. Nothing but the
    lock says that a thread writes, so an exception from a signal handler leaves nothing busy:
    those who wait look again soon, and write for themselves.

    With *parallel*, other appends may begin beside one that takes long. No run of a journal is in
    two appends at once: its later requests wait.
    """

    def __init__(self, *, parallel: bool = False) -> None:
        self._parallel = parallel
        self.renew()

    def renew(self) -> None:
        """Start with free locks and nothing queued, as in the child of a fork."""
        self._leaders = [_Leader() for _ in range(_LEADERS if self._parallel else 1)]
        self._choosing = threading.Lock()
        """Held while a leader takes from the queue."""
        self._queue: deque[_Waiting] = deque()

    def commit(self, journal: Journal, request: Request) -> Outcome:
        """Write *request*; return when it is durable."""
        sent = ((journal, request),)
        if not self._parallel and not self._queue and not self._leaders[0].lock.locked():
            with self._leaders[0].lock:
                return commit(sent)[0]
        return self.commit_all(sent)[0]

    def commit_all(self, sent: Sequence[Sent]) -> list[Outcome]:
        """Write requests of one caller; return when they are durable."""
        waiting = _Waiting(sent)
        try:
            self._queue.append(waiting)
            while not waiting.is_settled:
                leader, pause = self._turn_of(waiting)
                if leader is None or not self._lead(leader, waiting):
                    waiting.settled.acquire(timeout=pause)
        except BaseException:
            self._leave(waiting)
            raise
        if waiting.failure is not None:
            raise waiting.failure
        assert waiting.outcomes is not None
        return waiting.outcomes

    def together(self, journal: Journal, requests: Sequence[Request]) -> list[Outcome]:
        """Write all requests or none, while nothing else is written."""
        with ExitStack() as stack:
            for leader in self._leaders:
                stack.enter_context(leader.lock)
            return journal.commit_together(requests)

    def _turn_of(self, waiting: _Waiting) -> tuple[_Leader | None, float]:
        """The right that this thread has to take now, else None and a pause in seconds."""
        busy = self._busy()
        if waiting is not self._next(busy if self._parallel else ()):
            # Whoever took it out of the queue has a lock, or was interrupted.
            queued = bool(busy) or waiting in tuple(self._queue)
            return None if queued else self._leaders[0], _LOOK_AGAIN
        if not self._parallel:
            return self._leaders[0], _LOOK_AGAIN  # whose lock it waits for: nobody wakes it
        usable = self._leaders[: waiting.sent[0][0].storage.appends_at_once]
        free = next((one for one in usable if one not in busy), None)
        if free is None or not busy:
            return free, _LOOK_AGAIN
        early = max(one.since for one in busy) + _LONG - time.monotonic()
        return (None, early) if early > 0 else (free, _LOOK_AGAIN)

    def _busy(self, beside: _Leader | None = None) -> list[_Leader]:
        """The leaders that append, but for the one *beside* them."""
        return [one for one in self._leaders if one is not beside and one.lock.locked()]

    def _next(self, busy: Sequence[_Leader]) -> _Waiting | None:
        """The first in the queue of whose runs none is being written."""
        held = _runs(busy)
        return next((one for one in tuple(self._queue) if held.isdisjoint(one.runs)), None)

    def _lead(self, leader: _Leader, own: _Waiting) -> bool:
        """Write for all that wait; return True if that settled *own*."""
        with leader.lock:
            if not own.is_settled:
                self._write(leader, own)
        if self._parallel and (following := self._next(self._busy())) is not None:
            following.wake()
        return own.is_settled

    def _leave(self, waiting: _Waiting) -> None:
        """Withdraw requests whose thread was interrupted."""
        try:
            self._queue.remove(waiting)
        except ValueError:
            for leader in self._leaders:
                with leader.lock:  # another thread may be writing it
                    pass
        for other in tuple(self._queue):
            other.wake()

    def _write(self, leader: _Leader, own: _Waiting) -> None:
        """Write for all that wait, *own* included, unless their runs are being written."""
        with self._choosing:
            group = leader.group = self._chosen(leader, own)
            leader.since = time.monotonic()
        if not group:
            return
        try:
            outcomes = iter(commit(_requests(group)))
        except SureholdError as error:
            for waiting in group:
                waiting.failure = error
        else:
            for waiting in group:
                waiting.outcomes = [next(outcomes) for _ in waiting.sent]
        for waiting in group:
            waiting.wake()
        leader.group = ()

    def _chosen(self, leader: _Leader, own: _Waiting) -> list[_Waiting]:
        """Take all out of the queue whose runs no other leader is writing.

        *own* may be neither queued nor written: whoever took it was interrupted.
        """
        others = self._busy(leader)
        written = [one for other in others for one in other.group]
        # Asked last: a group is settled before another one takes its place.
        lost = own not in self._queue and own not in written and not own.is_settled
        every = [own] if lost else []
        while self._queue:
            every.append(self._queue.popleft())
        if not written:
            return every
        held = set().union(*(one.runs for one in written))
        self._queue.extend(one for one in every if not held.isdisjoint(one.runs))
        return [one for one in every if held.isdisjoint(one.runs)]


def _requests(group: Iterable[_Waiting]) -> list[Sent]:
    return [sent for waiting in group for sent in waiting.sent]


def _runs(leaders: Iterable[_Leader]) -> set[tuple[Journal, str]]:
    """The runs that some leaders are writing."""
    return {run for leader in leaders for one in leader.group for run in one.runs}


def perform(face: Face, steps: Steps[T]) -> T:
    """Carry out an operation; its commits may go out with requests of others."""
    # `core.driving.drive` without a call for each step: every save passes here.
    advance: Callable[[Any], Step] = steps.send
    value: Any = None
    try:
        while True:
            step = advance(value)
            advance = steps.send
            try:
                if type(step) is Commit:
                    value = face.engine.commits.commit(face.journal, step.request)
                else:
                    value = _do(face, step)
            except Exception as error:
                advance, value = steps.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _do(face: Face, step: Step) -> Any:
    if type(step) is Work:
        return step.call()
    if type(step) is Pause:
        return time.sleep(step.seconds)
    assert type(step) is Fire and face.hooks is not None
    return face.hooks.fire(step.event, step.agent_id, step.data)
