"""The line that says what a run waits for, or that it failed."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from surehold.core.context import during
from surehold.engine.runs.waiting import Waiting

logger = logging.getLogger("surehold.run")
"""Without any logging set up, Python writes its warnings to stderr."""

_quiet: ContextVar[bool] = ContextVar("surehold_quiet", default=False)


@contextmanager
def quietly() -> Iterator[None]:
    """Say nothing in this block: a worker or a command says how its runs end."""
    with during(_quiet, True):
        yield


def is_quiet() -> bool:
    """True where someone else says how runs end."""
    return _quiet.get()


def tell_waiting(run_id: str, waiting: list[Waiting], *, only_doubt: bool = False) -> None:
    """Say what a run waits for; with *only_doubt*, only if it is in doubt."""
    if only_doubt and not any(one.kind == "effect" for one in waiting):
        return
    named = ", ".join(_named(one) for one in waiting[:_MOST]) or "a run inside it"
    more = f" and {len(waiting) - _MOST} more" if len(waiting) > _MOST else ""
    logger.warning("run %s waits: %s%s (surehold pending %s)", run_id, named, more, run_id)


def tell_failed(run_id: str, error: str) -> None:
    """Say that a run failed whose caller gets a result, and no exception."""
    if not is_quiet():
        logger.warning("run %s failed: %s (surehold show %s)", run_id, error, run_id)


def try_again(run_id: str, calls: Sequence[str]) -> str:
    """The way out of a compensated run in which *calls* have failed."""
    call = shlex.quote(calls[0])
    return (
        f"calls followed the failure, so the run stays failed; to try again from before it:"
        f" surehold fork {shlex.quote(run_id)} --before {call}"
    )


_MOST = 3


def _named(one: Waiting) -> str:
    if one.kind == "effect":
        return f"it is not known whether {one.id} happened"
    if one.kind == "question":
        return f"{one.id} {one.question!r:.80}"
    if one.child:
        return f"run {one.child} to end"
    until = f" until {one.until.astimezone():%Y-%m-%d %H:%M:%S}" if one.until is not None else ""
    return f"{one.kind} {one.name}{until}" if one.name else f"{one.kind}{until}"
