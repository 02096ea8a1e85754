"""The table of endings: how a run ends, by the exception that its code ended with.

Every door looks an exception up here; a door decides only how it says so. A `BaseExceptionGroup`
ends a run as the member does whose row comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from surehold.errors import (
    BudgetError,
    Cancelled,
    ConflictError,
    DataError,
    Drained,
    InDoubtError,
    Interrupted,
    LeaseHeldError,
    NotFoundError,
    ShapeError,
    StorageError,
    SureholdError,
    UsageError,
    VetoError,
)

Gives = Literal["result", "error", "failure", "lost"]
"""What the caller of the run gets: a result with the status (a loop raises the signal); the
exception itself; the exception in the form that the door gives failures of user code; the
`ConflictError` of a run that another process has taken."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run that decide together with the exception."""

    run_id: str = ""
    lost: bool = False
    """Another process has taken the run's lease."""
    stopping: bool = False
    """The run was asked to stop."""
    followed: bool = False
    """Recorded calls followed the failure: it is an outcome, which a resume replays."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run."""

    status: str = ""
    """The status of the checkpoint that says so; empty if nothing is saved."""
    kind: str = ""
    permits: bool = False
    """A resume makes the calls again that failed."""
    gives: Gives = "error"
    compensated: bool = False
    """Recorded calls followed the failure: the run stays failed, however often it is resumed."""

    @property
    def saves(self) -> bool:
        """True if a checkpoint is saved."""
        return bool(self.status)


_NOTHING = Ending()
_LOST = Ending(gives="lost")
_WAITING = Ending(status="waiting", kind="interrupt", gives="result")
_STOPPED = Ending(status="interrupted", kind="interrupt", gives="result")
_CANCELLED = Ending(status="cancelled", kind="final", gives="result")
_BROKEN_OFF = Ending(status="interrupted", kind="interrupt")
_EXHAUSTED = Ending(status="budget_exhausted", kind="recovery", permits=True)
_UNUSABLE = Ending(status="failed", kind="recovery", permits=True)
_FAILED = Ending(status="failed", kind="recovery", permits=True, gives="failure")

_ROWS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Ending], ...] = (
    (Interrupted, _WAITING),
    (ShapeError, _NOTHING),
    (ConflictError, _NOTHING),
    (Cancelled, _CANCELLED),
    ((KeyboardInterrupt, SystemExit), _BROKEN_OFF),
    (Drained, _STOPPED),
    (GeneratorExit, _NOTHING),
    (VetoError, _NOTHING),
    (BudgetError, _EXHAUSTED),
    ((ConflictError, InDoubtError, StorageError), _UNUSABLE),  # conflicts of other runs
    (Exception, _FAILED),
    (BaseException, _BROKEN_OFF),  # the cancellation of a task, too
)

OF_THE_RUN = (BudgetError, ConflictError, InDoubtError, ShapeError, StorageError)
"""Errors that concern the whole run: retries of a node, chains, parallel items and tools pass
them on unchanged."""


def ending_of(error: BaseException, facts: RunFacts) -> Ending:
    """The end of a run whose code ended with *error*."""
    if facts.lost:
        return _LOST if isinstance(error, Exception) else _NOTHING
    ending = _ROWS[_row_of(decisive(error, facts), facts)][1]
    if facts.followed and ending.permits:
        return msgspec.structs.replace(ending, permits=False, compensated=True)
    return _STOPPED if ending is _WAITING and facts.stopping else ending


def decisive(error: BaseException, facts: RunFacts) -> BaseException:
    """The member of a group that decides how the run ends; any other error itself."""
    return min(_members(error), key=lambda one: _row_of(one, facts))


def _members(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _members(one)
    else:
        yield error


def _row_of(error: BaseException, facts: RunFacts) -> int:
    """The first row that fits; a conflict or veto of another run has none of its own."""
    foreign = isinstance(error, SureholdError) and (
        isinstance(error, LeaseHeldError) or error.facts.get("run_id", facts.run_id) != facts.run_id
    )
    return next(
        number
        for number, (kind, _) in enumerate(_ROWS)
        if isinstance(error, kind) and not (foreign and kind in (ConflictError, VetoError))
    )


Outcome = Literal[
    "completed", "cancelled", "waiting", "interrupted", "failed", "unfit", "held", "lost"
]

_DRIVEN: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Outcome | None], ...] = (
    (LeaseHeldError, "held"),
    (ConflictError, "lost"),
    ((ShapeError, UsageError, DataError, BudgetError, NotFoundError), "unfit"),
    (StorageError, None),
    (Exception, "failed"),
)


def driven_by(error: Exception) -> Outcome | None:
    """The outcome of `drive` for a run that raised *error*; None if `drive` raises it."""
    return next(outcome for kind, outcome in _DRIVEN if isinstance(error, kind))
