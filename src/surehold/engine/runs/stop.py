"""One stop policy: signals, scopes, timeouts and calls that ask a run to stop.

The first SIGINT or SIGTERM never breaks off what a door records as one unit: a node, a cycle, a
recorded call. The unit is finished and recorded, then the run stops as ``interrupted``. Outside of
a unit the signal raises at once, and the second signal always does.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal

import msgspec

from surehold.core.context import during
from surehold.core.policy import RunFacts, decisive
from surehold.engine.runs.positions import call_context
from surehold.errors import Drained

InterruptMode = Literal["graceful", "immediate"]
InterruptSource = Literal["signal", "timeout", "budget", "user", "drift"]


class InterruptReason(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for an interruption of a run."""

    source: InterruptSource
    mode: InterruptMode
    message: str
    timestamp: datetime

    def to_dict(self) -> dict[str, Any]:
        """The reason as the state keeps it."""
        return {**msgspec.structs.asdict(self), "timestamp": self.timestamp.isoformat()}


class StoppedByInterrupt(Drained, KeyboardInterrupt):
    """A run stopped after a first SIGINT; also what Python raises for the signal."""


class StoppedByTermination(Drained, SystemExit):
    """A run stopped after a first SIGTERM; uncaught, it ends the process with 143."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.code = 128 + signal.SIGTERM


class StopScope:
    """Stops whatever run is executed within it.

    It stops at its next step and is saved as ``interrupted``. Several executions may follow one
    another in one scope; once it is stopped, each stops at its first step.
    """

    def __init__(self) -> None:
        self.message: str | None = None
        """The reason of the request; None before there is one."""
        self._lock = threading.Lock()
        self._members: list[Callable[[str], None]] = []

    def stop(self, message: str) -> None:
        """Ask for it; from any thread."""
        with self._lock:
            if self.message is not None:
                return
            self.message = message
            members = [*self._members]
        for member in members:
            member(message)

    def add(self, member: Callable[[str], None]) -> None:
        """Have *member* called when the stop is asked for: now, if it was already."""
        with self._lock:
            self._members.append(member)
            message = self.message
        if message is not None:
            member(message)

    def remove(self, member: Callable[[str], None]) -> None:
        """Call it no longer."""
        with self._lock:
            if member in self._members:
                self._members.remove(member)

    def entered(self) -> AbstractContextManager[None]:
        """Have what is executed in this block stop with the scope."""
        return during(_scope, self)


_scope: ContextVar[StopScope | None] = ContextVar("surehold_stop_scope", default=None)


_LONGEST_REST = 0.2
"""Seconds after which a pause looks whether the run was asked to stop."""


class StopRequests:
    """Requests to stop one run: the first reason stays, the second is immediate.

    A run *of_units* is made of units only, as a graph is of nodes; any other is in a unit while a
    recorded call is in progress. A graceful request becomes immediate after *grace* seconds; None:
    never. Requests may come from any thread and from signal handlers.
    """

    def __init__(self, grace: float | None = None, *, of_units: bool = True) -> None:
        self.reason: InterruptReason | None = None
        self.number = 0
        """The signal that asked for the stop; 0 if none did."""
        self.raised = False
        """True once a signal was raised in plain code of the run, which may hide it."""
        self.doing = ""
        """The unit in progress, for the message to the user."""
        self.children: list[StopRequests] = []
        """Requests of agents that are executed inside this run, in the same task."""
        self._of_units = of_units
        self._units = 0
        self._counting = threading.Lock()
        self._grace = grace
        self._run_id = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self._idle: asyncio.Event | None = None

    # Requests

    def request(
        self, source: InterruptSource, message: str, mode: InterruptMode = "graceful"
    ) -> None:
        """Stop after the current unit; if *mode* says so, or on a second request, at once."""
        immediate = mode == "immediate" or self.reason is not None
        self.note(source, message, mode)
        self._wake(immediate)

    def note(
        self, source: InterruptSource, message: str, mode: InterruptMode = "graceful"
    ) -> InterruptReason:
        """Keep the first reason, here and in what is executed inside; return the one kept."""
        for child in self.children:
            child.note(source, message, mode)
        if self.reason is None:
            self.reason = InterruptReason(
                source=source, mode=mode, message=message, timestamp=datetime.now(UTC)
            )
        return self.reason

    def withdraw(self) -> None:
        """Discard the requests made so far."""
        self.reason, self.number, self.raised = None, 0, False
        _signals.withdraw()
        self._stop_timer()

    def check(self) -> None:
        """Raise `Drained` if a stop was asked for: here the run may end.

        A task of the run may be here, and Python's own signals would end its event loop.
        """
        if self.reason is not None:
            raise self._drained()

    @property
    def hidden(self) -> Drained | None:
        """The stop of a signal that was raised in plain code, which may hide it."""
        return self._drained() if self.raised else None

    def _drained(self) -> Drained:
        return Drained(self._message(), run_id=self._run_id)

    def _message(self) -> str:
        why = f": {self.reason.message}" if self.reason is not None else ""
        return f"run {self._run_id!r} was asked to stop{why}"

    def signal(self, message: str, **facts: Any) -> Drained:
        """The signal to raise for the stop; after a SIGINT or SIGTERM also Python's own."""
        facts = {"run_id": self._run_id, **facts}
        _signals.withdraw()
        if self.number == signal.SIGINT:
            _die_of_sigint_if_uncaught()
            return StoppedByInterrupt(message, **facts)
        return (StoppedByTermination if self.number else Drained)(message, **facts)

    def _wake(self, immediate: bool) -> None:
        if self._loop is not None:
            # Deferred: the node that asks may end before its task could be cancelled in it.
            self._loop.call_soon_threadsafe(self._enforce, immediate)

    def _enforce(self, immediate: bool) -> None:
        if self.reason is None or self._loop is None:
            return
        if immediate:
            self._cancel()
        elif self._grace is not None:
            self._timer = self._loop.call_later(self._grace, self._cancel)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel(self) -> None:
        """Cancel the task, unless one of the nested runs is between two nodes.

        A run between two nodes saves there and starts no other.
        """
        nested = self._nested()
        if self._cancelled or any(each._task is None for each in nested):
            return
        for each in nested:
            each._cancelled = True
        assert self._task is not None
        self._task.cancel("interrupted")

    def _nested(self) -> list[StopRequests]:
        return [self, *(inner for child in self.children for inner in child._nested())]

    def caused(self, error: BaseException) -> bool:
        """Return whether *error* is the cancellation made here; if so, take it back."""
        if not isinstance(error, asyncio.CancelledError) or not self._cancelled:
            return False
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        return True

    def translated(self, error: BaseException) -> BaseException:
        """The signal that ends a run which a signal stopped; else *error* itself."""
        drained = isinstance(decisive(error, RunFacts(run_id=self._run_id)), Drained)
        if self.caused(error) or (self.number and drained):
            return self.signal(self._message())
        return error

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that immediate requests cancel now."""
        return self._task

    # Units

    @property
    def busy(self) -> bool:
        """True in a unit that a first signal must not break off."""
        return self._of_units or self._units > 0

    @contextmanager
    def unit(self, name: str) -> Iterator[None]:
        """A recorded call, or a save, that a first signal does not break off."""
        with self._counting:
            self._units += 1
        self.doing = name
        try:
            yield
        finally:
            with self._counting:
                self._units -= 1
            if not self._units and self._idle is not None:
                self._idle.set()

    @property
    def in_unit(self) -> bool:
        """True while a recorded call is in progress."""
        return self._units > 0

    def rest(self, seconds: float) -> Iterator[float]:
        """The slices of a pause; ends the run between two of them if it was asked to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            yield min(left, _LONGEST_REST)

    @property
    def broken_off(self) -> bool:
        """True once the units in progress were cancelled, as by a second signal."""
        return self._cancelled

    async def until_idle(self) -> None:
        """Wait for the recorded calls of other tasks of a run that is being left."""
        while self._units and not self._cancelled:
            self._idle = asyncio.Event()
            await self._idle.wait()

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let immediate requests cancel the current task in this block, and only there."""
        self._task, self._cancelled = asyncio.current_task(), False
        try:
            yield
        finally:
            self._task = None

    # Watching

    @contextmanager
    def watching(
        self, run_id: str = "", *, signals: bool | None = None, timeout: float | None = None
    ) -> Iterator[None]:
        """Turn signals and the end of *timeout* into requests while a run is executed.

        Without *signals* they are heard unless the program handles them itself. Inside a call that
        must not be made again the run is not asked to stop: the call is the unit.
        """
        self.reason, self.number, self.raised, self._run_id = None, 0, False, run_id
        clock = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        if timeout is not None and self._loop is not None:
            message = f"{timeout:g} s have passed"
            clock = self._loop.call_later(timeout, self.request, "timeout", message)
        scope = _scope.get() if _may_stop() else None
        try:
            with _signals.told(self, signals):
                if scope is not None:
                    scope.add(self._from_scope)
                yield
        finally:
            if scope is not None:
                scope.remove(self._from_scope)
            if clock is not None:
                clock.cancel()
            self._stop_timer()
            self._loop = None

    @contextmanager
    def within(self, outer: StopRequests) -> Iterator[None]:
        """Forward the requests of *outer* while this run is executed inside it."""
        with self.watching(outer._run_id, signals=False):
            self.reason, self.number = outer.reason, outer.number
            outer.children.append(self)
            try:
                yield
            finally:
                outer.children.remove(self)

    def _from_scope(self, message: str) -> None:
        self.request("user", message)

    def heard(self, number: int) -> None:
        """Note a first signal, here and in what is executed inside."""
        for one in self._nested():
            one.number = number
        self.note("signal", signal.Signals(number).name)
        self._wake(immediate=False)

    def break_off(self, number: int) -> bool:
        """Cancel the run's task for a signal; False if it is plain code on this thread."""
        if self._loop is None:
            self.raised = True
            return False
        self.heard(number)
        self._wake(immediate=True)
        return True

    def cancelled_here(self, frame: FrameType) -> bool:
        """Take the task as cancelled if the code below *frame* blocks its event loop.

        Such code awaits nothing, so the task's own cancellation would wait until it returns.
        """
        nested = self._nested()
        if self._loop is None or any(each._task is None for each in nested):
            return False
        if asyncio.current_task(self._loop) is not self._task or not _is_foreign(frame):
            return False
        for each in nested:
            each._cancelled = each.raised = True
        return True

    def told(self) -> str:
        """The unit that is finished first, for the user."""
        after = f" after {self.doing}" if self.doing else ""
        return f"run {self._run_id}{after}" if self._run_id else f"the run{after}"


def _may_stop() -> bool:
    """False inside a call that must not be made again: a run there is not stopped."""
    here = call_context()
    return here is None or here.repeats


# Signals


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_SIGNAL = 0.02
"""Seconds in which a process may hear of one signal twice: itself, and as part of its group."""


@contextmanager
def hearing(heard: Callable[[int, int], None], *, foreign: bool = True) -> Iterator[bool]:
    """Call *heard* with each SIGINT or SIGTERM and its count in this block.

    Only the main thread receives signals: elsewhere nothing is heard. Without *foreign*, signals
    that the program handles itself are left to it. *heard* runs between two bytecodes of the main
    thread. Gives whether any signal is heard.
    """
    before: dict[int, Any] = {}
    counts: list[tuple[int, float]] = []

    def handle(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if counts and counts[-1][0] == number and now - counts[-1][1] < _ONE_SIGNAL:
            return
        counts.append((number, now))
        heard(number, len(counts))

    if threading.current_thread() is threading.main_thread():
        number: int
        for number in _SIGNALS:
            if foreign or _is_pythons(signal.getsignal(number)):
                before[number] = signal.signal(number, handle)
    try:
        yield bool(before)
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _is_pythons(handler: Any) -> bool:
    """True for the handlers that Python and `asyncio.run` install by themselves."""
    function = getattr(handler, "func", None)  # asyncio's is a partial
    return handler in (signal.default_int_handler, signal.SIG_DFL) or (
        getattr(function, "__qualname__", "") == "Runner._on_sigint"
    )


class _Signals:
    """The installation that the runs open on the main thread share."""

    def __init__(self) -> None:
        self._open: list[StopRequests] = []
        self._number = 0
        """The first signal, until it was raised."""

    @contextmanager
    def told(self, requests: StopRequests, wanted: bool | None) -> Iterator[None]:
        """Tell *requests* of signals while a run is executed."""
        main = threading.current_thread() is threading.main_thread()
        if wanted is False or not main or not _may_stop():
            yield
            return
        with contextlib.ExitStack() as stack:
            if not self._open:
                self._number = 0
                stack.enter_context(hearing(self._heard, foreign=wanted is True))
            elif self._number:
                requests.heard(self._number)
            self._open.append(requests)
            try:
                yield
            finally:
                self._open.remove(requests)
                number = self._number if not self._open else 0
        if number:  # heard, and the run ended without saying so: the signal is not lost
            raise _pythons(number)

    def withdraw(self) -> None:
        """Forget the first signal: it is raised now, or was refused."""
        self._number = 0

    def _heard(self, number: int, count: int) -> None:
        open_runs = [*self._open]
        if count == 1:
            self._number = number
            for one in open_runs:
                one.heard(number)
            busy = [one for one in open_runs if one.busy]
            if busy:
                _say(f"surehold: stopping {busy[-1].told()}; a second signal breaks it off\n")
                return
        innermost = _innermost(open_runs)
        broken_off = [one.break_off(number) for one in innermost]
        if count < 3 and any(one.cancelled_here(sys._getframe()) for one in innermost):
            raise asyncio.CancelledError("interrupted")
        if count > 2 or not broken_off or not broken_off[0]:
            self._number = 0
            raise _pythons(number)


def _is_foreign(frame: FrameType | None) -> bool:
    """True if that code is called by the user's, perhaps through the standard library.

    The handlers in between are passed over: the second signal may come in that of the first.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if module != __name__ and package not in sys.stdlib_module_names:
            return package != "surehold"
        frame = frame.f_back
    return False


def _innermost(runs: Sequence[StopRequests]) -> list[StopRequests]:
    """The newest run of each task."""
    return [*{one.task: one for one in runs}.values()][::-1]


_signals = _Signals()


def _pythons(number: int) -> BaseException:
    """The exception with which Python and shells expect a program to end."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _say(text: str) -> None:
    """Write to stderr from a signal handler, which may have interrupted a write."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


_hooked: list[bool] = []


def _die_of_sigint_if_uncaught() -> None:
    """Have a program that does not catch the signal die of SIGINT, as a shell expects.

    Python does so for `KeyboardInterrupt` itself, and not for classes derived from it.
    """
    if _hooked:
        return
    _hooked.append(True)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        before(kind, error, trace)
        if kind is StoppedByInterrupt:
            atexit.register(_die_of_sigint)

    sys.excepthook = hook


def _die_of_sigint() -> None:
    atexit.unregister(_die_of_sigint)
    atexit._run_exitfuncs()  # those registered earlier, which would come after this one
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
