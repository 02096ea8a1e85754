"""Triggers of saves, and the clockwork that tells whether one is due.

Triggers compose by OR, and only say when a *routine* save is due: the final checkpoint and those
of an error or an interrupt are always taken, by the code that runs the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from surehold.errors import UsageError

LONGEST_SECONDS = 1e9
"""The end of a wait that is longer than these thirty years may be no date."""


class Triggers(msgspec.Struct, frozen=True):
    """Conditions for a save; any of them is enough. Without any, every step is saved.

    >>> Triggers(frequency=5, interval=60.0, nodes=["review"]).nodes
    frozenset({'review'})
    """

    frequency: int | None = None
    """Steps after the last save."""
    interval: float | None = None
    """Seconds after the last save."""
    predicate: Callable[[Any], bool] | None = None
    """Fires when the function returns True for the state."""
    nodes: Collection[str] = ()
    """After these nodes; a single name may be given as it is."""

    def __post_init__(self) -> None:
        _check_frequency(self.frequency)
        _check_interval(self.interval)
        if self.predicate is not None and not callable(self.predicate):
            raise UsageError(
                f"predicate is {self.predicate!r}", hint="give a function of the state"
            )
        nodes: frozenset[object] = frozenset(
            [self.nodes] if isinstance(self.nodes, str) else self.nodes
        )
        if not all(isinstance(node, str) and node for node in nodes):
            raise UsageError(f"nodes is {self.nodes!r}", hint="give the names of nodes")
        msgspec.structs.force_setattr(self, "nodes", nodes)

    @property
    def every_step(self) -> bool:
        """True if none is set, so that every call is due."""
        return (
            self.frequency is None
            and self.interval is None
            and self.predicate is None
            and not self.nodes
        )


class Clockwork:
    """Counts steps and seconds since a run's last save, and tells when one is due.

    *step* is the last saved step, if it is known: 0 for a run that begins, the checkpoint's for
    one that is resumed, so that what was saved before counts. Without it the first call of `due`
    sets it. Seconds count from *now*, or else from that first call, by any clock, for it is
    compared only with itself; best by a monotonic one.

    Only `saved` starts the counting anew. A save that failed is not reported, and stays due.

    >>> clock = Clockwork(Triggers(frequency=5), step=0)
    >>> clock.due(4, 0.0), clock.due(5, 0.1), clock.due(6, 0.2)
    (None, 'every 5 steps', 'every 5 steps')
    >>> clock.saved(6, 0.3)
    >>> clock.due(10, 0.4), clock.due(11, 0.5)
    (None, 'every 5 steps')
    """

    __slots__ = ("_every_step", "_now", "_step", "triggers")

    def __init__(
        self, triggers: Triggers, *, step: int | None = None, now: float | None = None
    ) -> None:
        self.triggers = triggers
        self._every_step = triggers.every_step
        self._step = step
        self._now = now

    def due(
        self, step: int, now: float, *, node: str | None = None, state: Any = None
    ) -> str | None:
        """Return why a save is due after this step, or None. The predicate needs a state."""
        # What went back, a run or a clock, counts from there, and not up to where it was.
        self._step = step if self._step is None else min(self._step, step)
        self._now = now if self._now is None else min(self._now, now)
        if self._every_step:
            return "every step"
        want = self.triggers
        if want.frequency is not None and step - self._step >= want.frequency:
            return "every step" if want.frequency == 1 else f"every {want.frequency} steps"
        if want.interval is not None and now - self._now >= want.interval:
            return f"every {want.interval:g} s"
        if node is not None and node in want.nodes:
            return f"node {node}"
        if want.predicate is not None and state is not None and want.predicate(state):
            return "predicate"
        return None

    def saved(self, step: int, now: float) -> None:
        """A checkpoint of *step* is stored, whatever it was taken for: count from here."""
        self._step = step
        self._now = now


def check_above_zero(**given: Any) -> None:
    """Refuse by name what is no number above 0 and at most 1e9; None passes."""
    for name, value in given.items():
        if value is not None and not (is_duration(value) and value > 0):
            hint = "give a number above 0, at most 1e9"
            raise UsageError(f"{name} is {value!r}", hint=hint, field=name)


def is_duration(value: Any) -> bool:
    """True for seconds that can be waited for, from 0."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_SECONDS


def _check_frequency(frequency: object) -> None:
    number = isinstance(frequency, int) and frequency >= 1
    if (not number or isinstance(frequency, bool)) and frequency is not None:
        raise UsageError(
            f"frequency is {frequency!r}", hint="give 1 or more steps, or leave it out"
        )


def _check_interval(interval: object) -> None:
    number = isinstance(interval, int | float) and 0 < interval < math.inf
    if (not number or isinstance(interval, bool)) and interval is not None:
        raise UsageError(
            f"interval is {interval!r}", hint="give a number of seconds above 0, or leave it out"
        )
