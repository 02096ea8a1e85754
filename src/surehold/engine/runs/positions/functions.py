"""Positions of the calls in a durable function, in the order of creation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from surehold.core.records import Effect
from surehold.core.values import decode, encode
from surehold.engine.runs.effect_log import Spot
from surehold.engine.runs.positions.context import CallContext, Emit
from surehold.errors import Cancelled, Interrupted, ShapeError

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun


_CANCELLED = "cancelled"
"""The name of the record where code was told that its run is cancelled."""


class Recorded:
    """The positions that the journal holds, and the calls at them."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.names: dict[str, str] = {}
        self.groups: set[str] = set()
        for id in ids:
            name, _, position = id.rpartition("@")
            self.names[position] = name
            while "/" in position:
                position = position.rpartition("/")[0]
                self.groups.add(position.partition(":")[0])


class CallOrder(CallContext):
    """Numbers the calls of a function, of a child, or of one branch of a `gather`."""

    __slots__ = (
        *("_outer", "_prefix", "_recorded", "_told"),
        *("awaited", "count", "frees", "mark"),
    )
    run: OpenRun
    awaited: bool | None
    calls_are_steps = True

    def __init__(
        self,
        run: OpenRun,
        recorded: Recorded,
        *,
        awaited: bool | None,
        frees: bool,
        mark: Callable[[str], None],
        prefix: str = "",
        emit: Emit | None = None,
    ) -> None:
        super().__init__(emit, run)
        self._recorded = recorded
        self._prefix = prefix
        self._outer = 0
        """The step of the run that these calls are inside of; 0 if they are its steps."""
        self._told = False
        """True if code here, or further inside, was told that the run is cancelled."""
        self.count = 0
        """The calls so far."""
        self.awaited = awaited
        self.frees = frees
        """True if a wait ends this execution instead of lasting."""
        self.mark = mark
        """Saves the run's status while it waits."""

    @property
    def spot(self) -> Spot:
        return Spot("", self._outer or self.count, self._prefix[:-1])

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call, ``charge@3``; a `ShapeError` if another is recorded."""
        if key is not None:
            return f"{_safe(name)}@{self._prefix}[{_safe(key)}]"
        position = self._next(name)
        if position in self._recorded.groups and position not in self._recorded.names:
            raise self._changed(position, "a gather or a child workflow", name)
        return f"{_safe(name)}@{position}"

    def _next(self, name: str) -> str:
        position = f"{self._prefix}{self.count + 1}"
        known = self._recorded.names.get(position)
        if known is None:
            if self.run.stop.reason is not None:
                self.check_stop()
            if self.run.is_cancelled and position not in self._recorded.groups:
                self.count += 1
                self.check_cancel(f"{_CANCELLED}@{position}")
                self.count -= 1
        elif known == _CANCELLED:
            self.count += 1
            self.check_cancel(f"{_CANCELLED}@{position}")
        elif known != _safe(name):
            raise self._changed(position, repr(known), name)
        self.count += 1
        return position

    def check_end(self) -> None:
        """Raise a `ShapeError` if recorded calls follow the last that the code made."""
        after = [int(at) for at in self._recorded.names if at.isdigit() and int(at) > self.count]
        if after:
            position = str(min(after))
            raise self._changed(position, repr(self._recorded.names[position]), "")

    @property
    def is_outermost(self) -> bool:
        """True for the calls of the function itself."""
        return not self._prefix

    @property
    def stopped(self) -> bool:
        """True if the run was asked to stop."""
        return self.run.stop.reason is not None

    def check_stop(self) -> None:
        """Raise `Drained` if the run was asked to stop, and may be left here."""
        if self.run.stop.reason is not None and self.repeats and not self.run.is_cancelled:
            self.run.stop.check()

    def check_cancel(self, id: str) -> None:
        """Raise `Cancelled` if the run was asked to end, once in each branch.

        Where it was raised is recorded at the position *id*. Later it is raised again only when
        the time for the cleanup is over: then the run is left.
        """
        known = self.run.ledger.find(Effect, id)
        if known is not None and known.name == _CANCELLED:
            raise self._tell(decode(bytes(known.value)))
        if known is not None or not self.run.is_cancelled:
            return
        until = self.run.cleanup_until
        if self._told:
            if until is not None and time.time() > until:
                late = f"run {self.run.run_id!r} was cancelled, and its cleanup took long"
                raise self.leave(Cancelled(late, run_id=self.run.run_id))
            return
        if until is None:
            until = self.run.new_cleanup()
        text = msgspec.Raw(encode(until))
        marked = Effect(id=id, name=_CANCELLED, key="", policy="retry", done=True, value=text)
        self.run.ledger.defer(marked, self.spot)
        raise self._tell(until)

    def _tell(self, until: float) -> Cancelled:
        self.run.cleanup_until = until
        order: CallContext | None = self
        while isinstance(order, CallOrder):
            order._told, order = True, order.around
        why = "is past its deadline" if self.run.is_late else "was asked to end"
        return Cancelled(f"run {self.run.run_id!r} {why}", run_id=self.run.run_id)

    def leave(self, error: BaseException) -> BaseException:
        """Leave the run; a run that was asked to end does not wait instead."""
        if isinstance(error, Interrupted) and self.run.is_cancelled and not self._told:
            return self._tell(self.run.new_cleanup())
        return super().leave(error)

    def _changed(self, position: str, was: str, name: str) -> BaseException:
        """The error of changed code; if the run was asked to stop, that is raised."""
        self.check_stop()
        run_id = self.run.run_id
        changed = ShapeError(
            f"call {position} of run {run_id!r} is recorded as {was}, and the code now "
            + (f"calls {name!r} there" if name else "ends before it"),
            hint="let runs that began earlier finish on the old code: `if patched(...)`, or"
            " version=; what decides on a call (time, chance, a model) must be recorded too"
            + self.hint_on_order,
            run_id=run_id,
            position=position,
            recorded=was,
            called=name,
        )
        return self.leave(changed)

    def child(self, name: str, awaited: bool) -> tuple[str, CallOrder]:
        """The id of the next call, a child workflow, and the order of the calls in it."""
        position = self._next(name)
        return f"{_safe(name)}@{position}", self._inside(f"{position}/", awaited)

    def inside(self, place: str, awaited: bool | None) -> CallOrder:
        """The order of the calls that the step at *place* makes itself."""
        made = self._inside(f"{place.rpartition('@')[2]}!/", awaited)
        made._told = True  # a step that has begun is finished
        return made

    def branches(self, number: int) -> Sequence[CallOrder]:
        """The orders of the calls in so many branches, at the next position."""
        self.count += 1
        position = f"{self._prefix}{self.count}"
        if position in self._recorded.names:
            raise self._changed(position, repr(self._recorded.names[position]), "gather")
        return [self._inside(f"{position}:{branch}/", True) for branch in range(number)]

    def race(self, number: int) -> tuple[str, list[CallOrder]]:
        """The id of a race at the next position, and the orders of its branches."""
        position = self._next("race")
        return f"race@{position}", [
            self._inside(f"{position}:{branch}/", True) for branch in range(number)
        ]

    def at_patch(self, name: str) -> str | None:
        """The id of the marker at the next position; None if a call is recorded there.

        Then the position is left to that call.
        """
        position = f"{self._prefix}{self.count + 1}"
        known = self._recorded.names.get(position)
        if (known is not None and known != _safe(name)) or (
            known is None and position in self._recorded.groups
        ):
            return None
        return self.place(name, None)

    def _inside(self, prefix: str, awaited: bool | None) -> CallOrder:
        made = CallOrder.__new__(CallOrder)  # a copy, made for every recorded call
        made.run, made.emit, made.mark = self.run, self.emit, self.mark
        made._recorded, made.frees = self._recorded, self.frees
        made._outer = self._outer or self.count
        made._prefix, made.awaited, made.count, made.failed = prefix, awaited, 0, {}
        made.repeats, made.begun, made.around = self.repeats, None, self
        made._told, made.within_task = self._told, self.within_task
        made._caller = made._turns = None
        return made


@lru_cache(maxsize=1024)
def _safe(name: str) -> str:
    return name.replace("%", "%25").replace("@", "%40").replace("/", "%2F")
