"""Events, and what receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run. `data` holds facts about it, not the values of the state."""

    type: str
    source: str
    """The graph's name."""
    timestamp: datetime
    data: Mapping[str, Any]
    seq: int = 0
    """The newest record of its run when it happened; 0 before there is one. `surehold.events`
    gives the recorded events after it, in any process."""


@runtime_checkable
class Observer(Protocol):
    """Receives every event, at once and on the thread where it happens.

    `on_event` is a plain method. The first exception that it raises in a run is logged; none
    changes anything.
    """

    def on_event(self, event: Event) -> None:
        """Handle *event*."""


def deliver(
    event: Event,
    observers: Iterable[Observer],
    failed: set[int],
    tell: Callable[[Observer, Exception], None],
) -> None:
    """Give *event* to all *observers*; *tell* of the first failure of each.

    *failed* are those that have failed, by identity.
    """
    for observer in observers:
        try:
            observer.on_event(event)
        except Exception as error:
            if id(observer) not in failed:
                failed.add(id(observer))
                tell(observer, error)
