"""Observers: receivers of the events of a graph."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from surehold.core.state import Event, Observer, deliver
from surehold.doors.checks import check_listener, is_async
from surehold.engine.runs.effects import failure_text
from surehold.engine.runs.positions import Emit
from surehold.errors import NotFoundError, UsageError

logger = logging.getLogger("surehold.graph")


class NoopObserver:
    """Receives nothing; no events are made for it."""

    def on_event(self, event: Event) -> None:
        """Do nothing."""


class Listener:
    """Calls a function with every event."""

    def __init__(self, function: Callable[[Event], None]) -> None:
        check_listener(function)
        self._function = function

    def __repr__(self) -> str:
        return f"on_event={self._function!r}"

    def on_event(self, event: Event) -> None:
        """Call the function."""
        self._function(event)


_LOUD = frozenset(["run.failed", "run.interrupted", "lease.lost", "effect.in_doubt"])
_PLAIN = frozenset(
    [
        "graph.start",
        "graph.complete",
        "node.complete",
        "checkpoint.resume",
        "cycle.detected",
        "run.waiting",
    ]
)


class LogObserver:
    """Writes events to the logger ``surehold.graph``: failures as warnings.

    Secrets of a known form are redacted, and a long event is cut off.
    """

    def on_event(self, event: Event) -> None:
        """Log *event*."""
        level = logging.DEBUG
        if event.type in _LOUD:
            level = logging.WARNING
        elif event.type in _PLAIN:
            level = logging.INFO
        if logger.isEnabledFor(level):
            facts = " ".join(f"{key}={value!r}" for key, value in event.data.items())
            logger.log(level, "%s %s %s", event.source, event.type, failure_text(facts))


def _drift_watch() -> Observer:
    from surehold.doors.events.drift_watch import DriftWatch

    return DriftWatch()


_lock = threading.Lock()
_named: dict[str, Observer | Callable[[], Observer]] = {
    "drift": _drift_watch,
    "noop": NoopObserver,
    "log": LogObserver,
}


def register_observer(name: str, observer: Observer | Callable[[], Observer]) -> None:
    """Register *observer*, or a function that makes one, as *name*."""
    if not name:
        raise UsageError("an observer needs a name to be registered under")
    if not _observes(observer) and not callable(observer):
        raise UsageError(f"{name!r} has no on_event method", hint="see surehold.Observer")
    with _lock:
        _named[name] = observer


def get_observer(name: str) -> Observer:
    """The observer registered as *name*; a `NotFoundError` lists the known names."""
    with _lock:
        found = _named.get(name)
        names = ", ".join(sorted(_named))
    if found is None:
        raise NotFoundError(f"no observer is registered as {name!r}", hint=f"there are: {names}")
    made = found if _observes(found) else found()  # type: ignore[operator]
    if not _observes(made):
        raise UsageError(
            f"the factory {name!r} makes no observer", hint="it needs an on_event method"
        )
    return made  # type: ignore[return-value]


def _observes(thing: object) -> bool:
    return not isinstance(thing, type) and isinstance(thing, Observer)


def resolve_observers(given: str | Observer | Sequence[str | Observer]) -> tuple[Observer, ...]:
    """The observers that *given* names, without those that receive nothing."""
    several: Sequence[str | Observer]
    several = [given] if isinstance(given, str) or not isinstance(given, Sequence) else given
    made = [get_observer(one) if isinstance(one, str) else one for one in several]
    for one in made:
        if not _observes(one):
            raise UsageError(f"{one!r} is not an observer", hint="it needs an on_event method")
        if is_async(one.on_event):
            raise UsageError(
                f"on_event of {type(one).__name__} is async",
                hint="make it a plain method; asyncio.create_task starts what must wait",
            )
    return tuple(one for one in made if not isinstance(one, NoopObserver))


def _log_failure(kind: str, observer: Observer, error: Exception) -> None:
    logger.warning(
        "%r failed on %s; its later failures in this run are not logged",
        observer,
        kind,
        exc_info=error,
    )


def emitter(
    observers: Sequence[Observer],
    source: str,
    facts: Mapping[str, Any],
    head: Callable[[], int] | None = None,
    failed: set[int] | None = None,
) -> Emit | None:
    """A function that sends events with *facts* to *observers*; None without any.

    *head* tells the newest record of the run. *failed* are the identities of observers whose
    failure in this run was logged; they are added to.
    """
    if not observers:
        return None
    told = failed if failed is not None else set()

    def emit(kind: str, data: Mapping[str, Any]) -> None:
        event = Event(
            type=kind,
            source=source,
            timestamp=datetime.now(UTC),
            data={**facts, **data},
            seq=head() if head is not None else 0,
        )
        deliver(event, observers, told, partial(_log_failure, kind))

    return emit
