"""Warn of tasks that take turns at making calls: their order is not sure."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from surehold.core.records import Answer, Effect, Timer

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun

GIVE_TO_GATHER = "give coroutines that make several calls each to surehold.gather"


class Turns:
    """The newest call of each task or thread that makes calls in one order.

    Calls are known by their order. A call that begins in one task while another task is in the
    middle of its own has a sure place. The next call of the other task has no sure place: a resume
    returns recorded outcomes at once, and the two calls may change places.
    """

    __slots__ = ("_newest", "_overtaken", "_warned")

    def __init__(self) -> None:
        self._newest: WeakKeyDictionary[Hashable, str] = WeakKeyDictionary()
        self._overtaken: WeakKeyDictionary[Hashable, str] = WeakKeyDictionary()
        """Tasks that were in the middle of a call when another task began one."""
        self._warned = False

    def switch(self, run: OpenRun, before: tuple[Hashable, str], here: Hashable, to: str) -> None:
        """Note that *here* makes the call *to* after another task made one *before*.

        Warn, once, if the place of the call is not sure.
        """
        task, place = before
        self._newest[task] = place
        self._newest.pop(here, None)
        overtaken = self._overtaken.pop(here, None)
        for other, newest in self._newest.items():
            if not _is_settled(run, newest):
                self._overtaken[other] = newest
        if overtaken is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"tasks of run {run.run_id!r} take turns at making calls, here {to} after"
                f" {overtaken}: a resume may find them in another order, and refuse to continue"
                f" ({GIVE_TO_GATHER})",
                RuntimeWarning,
                stacklevel=6,  # the caller of an async step
            )


def _is_settled(run: OpenRun, place: str) -> bool:
    ledger = run.ledger
    effect, timer = ledger.find(Effect, place), ledger.find(Timer, place)
    if effect is not None and effect.done:
        return True
    return ledger.find(Answer, place) is not None or (timer is not None and timer.expired)
