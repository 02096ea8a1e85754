"""The position of running code in a run, and the run that it is in."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from surehold.core.context import FRAMEWORKS, framework_task
from surehold.core.records import Effect, digest_of
from surehold.engine.commit import in_event_loop
from surehold.engine.hooks import hide_secrets
from surehold.engine.runs.effect_log import Spot
from surehold.engine.runs.effects import AwaitsAll
from surehold.engine.runs.leaving import running_task
from surehold.engine.runs.positions.turns import GIVE_TO_GATHER, Turns
from surehold.errors import Drained, ShapeError, UsageError

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun
    from surehold.engine.runs.positions.nodes import StepContext

Emit = Callable[[str, Mapping[str, Any]], None]


def place_name(name: str, step: int) -> str:
    """The unique name of a place, from its *name* and its step."""
    if "/" in name or "@" in name or "%" in name:
        name = name.replace("%", "%25").replace("/", "%2F").replace("@", "%40")
    return f"{name}@{step}"


class CallContext(ABC):
    """The position of running code in a run, as `effect` needs it."""

    __slots__ = (
        *("_caller", "_newest", "_turns"),
        *("around", "begun", "emit", "failed", "repeats", "run", "within_task"),
    )
    calls_are_steps = False
    """True if each call is a step of the run, and not part of a step."""

    def __init__(self, emit: Emit | None, run: OpenRun | None) -> None:
        self.emit = emit
        self.run = run
        """The run that records calls; None if nothing is recorded."""
        self.repeats = True
        """False inside a call that must not be made again: the run cannot be left there."""
        self.failed: dict[tuple[str, str | None, str], str] = {}
        """Idempotency keys of calls that raised, by name, key and arguments: an attempt that
        follows uses the same one."""
        self.around: CallContext | None = None
        """The positions of the code that this code is called by."""
        self._caller: Hashable = None
        """The task or thread that made the newest call."""
        self._newest = ""
        self._turns: Turns | None = None
        """The newest calls of others, once there are any."""
        self.begun: dict[str, set[int]] | None = None
        """The numbers of the runs begun here that are executed or completed, by place."""
        found = framework_task() if FRAMEWORKS else None
        self.within_task = found[0] if found is not None else None
        """The task of a framework in whose code these positions begin."""

    @property
    @abstractmethod
    def spot(self) -> Spot:
        """The position that notes are written at."""

    @property
    def awaited(self) -> bool | None:
        """True if the code can await calls, False if it cannot, None if that is not known."""
        return None

    @property
    def in_async(self) -> bool:
        """True if a call here gives what is to be awaited."""
        return in_event_loop() if self.awaited is None else self.awaited

    @abstractmethod
    def place(self, name: str, key: str | None) -> str:
        """The id of the next call of that name."""

    def take(self, name: str, key: str | None) -> str:
        """The id of the next call of that name, which the running task makes."""
        place = self.place(name, key)
        if key is None and self.run is not None:
            here = running_task()
            if here is not self._caller and self._caller is not None:
                if self._turns is None:
                    self._turns = Turns()
                self._turns.switch(self.run, (self._caller, self._newest), here, place)
            self._caller, self._newest = here, place
        return place

    @property
    def hint_on_order(self) -> str:
        """The end of a hint about calls in another order, for code that can have tasks."""
        return f"; {GIVE_TO_GATHER}" if self.in_async else ""

    @abstractmethod
    def inside(self, place: str, awaited: bool | None) -> CallContext:
        """The positions of the calls that the call at *place* makes itself.

        They are counted apart: a replay that finds the outcome of *place* makes no inner calls.
        """

    def active(self) -> AwaitsAll:
        """A block of user code whose calls are counted here, and are all awaited."""
        return AwaitsAll(OPEN_RUN, self)

    def check(self) -> None:
        """Begin a recorded call, unless the run is being left or is lost."""
        if self.run is not None:
            self.check_leaving()
            self.run.check_lease()
            self.run.leaving.called()

    def check_leaving(self) -> None:
        """Raise the signal that leaves the run, or leave it if it is to stop."""
        self.check_left()
        stop = self.run.call_stop if self.run is not None else None
        if stop is None or stop.reason is None or not self.repeats or self.run is None:
            return
        if not self.run.is_cancelled:
            try:
                stop.check()
            except Drained as left:
                raise self.leave(left) from None

    def check_left(self) -> None:
        """Raise the signal with which a call here left the run, if code hid it."""
        if self.run is not None:
            self.run.leaving.check(self)
            stop = self.run.stop
            if stop.raised and (hidden := stop.hidden) is not None:
                raise self.leave(hidden)

    def check_cancel(self, id: str) -> None:
        """Raise `Cancelled`, once, if the run was asked to end, in the wait *id*."""

    def check_new(self, id: str) -> None:
        """Refuse the new call *id*, if the run is completed or only replayed."""
        if self.run is not None and ONLY_REPLAYED.get():
            raise self.leave(Drained(f"run {self.run.run_id!r} was replayed up to {id}"))
        if self.run is not None and self.run.over:
            new = ShapeError(
                f"run {self.run.run_id!r} is completed, and has recorded no outcome of {id}",
                hint="a completed run calls nothing more: give another run_id, or fork the run",
                run_id=self.run.run_id,
                effect=id,
            )
            raise self.leave(new)

    def leave(self, error: BaseException) -> BaseException:
        """Leave the run with *error*, which is to be raised now."""
        if (asked := ASKED.get()) is not None:
            asked()
        return self.run.leaving.mark(error, self) if self.run is not None else error

    def is_within(self, outer: CallContext) -> bool:
        """True if this code is *outer*, or is called by it."""
        here: CallContext | None = self
        while here is not None and here is not outer:
            here = here.around
        return here is not None

    def branches(self, number: int) -> Sequence[CallContext]:
        """The positions in so many branches of a `gather`, at the next position."""
        return self._branches(self.place("gather", None), number)

    def race(self, number: int) -> tuple[str, Sequence[CallContext]]:
        """The id of a race at the next position, and the positions in its branches."""
        place = self.place("race", None)
        return place, self._branches(place, number)

    def _branches(self, place: str, number: int) -> Sequence[CallContext]:
        made = [self.inside(f"{place}:{branch}", True) for branch in range(number)]
        for one in made:
            one.repeats = self.repeats
        return made

    def enter(self) -> None:
        """Have the calls of the running task counted here from now on."""
        OPEN_RUN.set(self)

    def locate(self, name: str, key: str | None, args: str) -> tuple[str, Effect | None, str]:
        """The next call's id, its recorded entry if there is one, and its idempotency key."""
        run = self.run
        assert run is not None
        hidden = None if key is None else hide_secrets(key, run.hook_manager)
        place = self.take(name, hidden)
        ledger = run.ledger
        attempt, stem = 0, place
        while key is not None and (place, None, "") in self.failed:
            attempt += 1
            place = f"{stem}.{attempt}"
        known = ledger.find(Effect, place)
        if known is not None:
            return place, known, known.key
        again = self.failed.get((name, key, args))
        return place, None, again or idempotency_key(run, place)

    def ended(self, entry: Effect, key: str | None, *, failed: bool) -> None:
        """Note how a call ended, for the attempts that may follow it."""
        if failed:
            self.failed[entry.name, key, entry.args] = entry.key
            self.failed[entry.id, None, ""] = entry.key
        elif self.failed:
            self.failed.pop((entry.name, key, entry.args), None)

    def say(self, kind: str, **data: Any) -> None:
        """Tell the observers."""
        if self.emit is not None:
            self.emit(kind, data)


def idempotency_key(run: OpenRun, place: str) -> str:
    """The idempotency key of the call at *place*."""
    parts = [run.run_id, place]
    if run.branch:
        parts.append(str(run.branch))
    return digest_of("\0".join(parts).encode())


CURRENT_STEP: ContextVar[StepContext | None] = ContextVar("surehold_here", default=None)
ASKED: ContextVar[Callable[[], None] | None] = ContextVar("surehold_asked", default=None)
"""Asks the run that is replayed for a query, before its code is told that it is left."""
ONLY_REPLAYED: ContextVar[bool] = ContextVar("surehold_only_replayed", default=False)
"""True where a run is replayed to see if its code fits: it is left at the first new call."""
OPEN_RUN: ContextVar[CallContext | None] = ContextVar("surehold_open_run", default=None)
"""The run or durable function that is open here; a graph inside it is a run of its own."""


def call_context() -> CallContext | None:
    """The innermost run that the running code is in."""
    return CURRENT_STEP.get() or OPEN_RUN.get()


def recording_context() -> CallContext | None:
    """The innermost run that the running code is in, a framework's included."""
    own = CURRENT_STEP.get() or OPEN_RUN.get()
    found = framework_task() if FRAMEWORKS else None
    if found is None or (own is not None and own.within_task is found[0]):
        return own
    positions: CallContext | None = found[1]()
    return positions


RUNS_HERE: list[str] = []
"""The functions and blocks that this process executes, by run id."""
_warned_of: set[str] = set()


def warn_beside(name: str) -> None:
    """Warn once of a step in a thread that has not the context of its run."""
    if not RUNS_HERE or name in _warned_of:
        return
    if threading.current_thread() is not threading.main_thread():
        _warned_of.add(name)
        warnings.warn(
            f"step {name!r} is called in a thread outside run {RUNS_HERE[-1]!r}, and is not"
            " recorded (start threads with asyncio.to_thread, or each call of a pool"
            " with pool.submit(contextvars.copy_context().run, ...))",
            RuntimeWarning,
            stacklevel=3,
        )


def check_awaited(what: str, instead: str) -> None:
    """Raise a `UsageError` if *what* must be awaited, and the running code cannot."""
    context = recording_context()
    if context is not None and context.awaited is False:
        raise UsageError(
            f"{what} must be awaited, and this code is not async",
            hint=f"make the workflow or the run async; in plain code {instead}",
        )
