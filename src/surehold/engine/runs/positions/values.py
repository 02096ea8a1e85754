"""Values at positions in a run, recorded with whatever is recorded next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from surehold.core.records import Effect
from surehold.core.values import decode, encode
from surehold.engine.runs.positions.context import CallContext, recording_context
from surehold.errors import ShapeError

T = TypeVar("T")


def recorded_value(name: str, make: Callable[[str], T]) -> T:
    """The recorded value at the next position, or else what *make* gives.

    *make* gets the id of the position. Outside a run nothing is recorded, and the id is empty.
    """
    value: T = recorded_here(name)(make)
    return value


def recorded_here(name: str) -> Callable[[Callable[[str], Any]], Any]:
    """Take the next position; what it gives is `recorded_value` there."""
    context = recording_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        return lambda make: make("")
    context.check()
    id, known, _ = context.locate(name, None, "")
    if known is not None:
        if not known.done:
            wrong = ShapeError(f"{id} is recorded as a call in doubt", run_id=run.run_id)
            raise context.leave(wrong)
        value = decode(bytes(known.value))
        return lambda make: value
    context.check_new(id)

    def made(make: Callable[[str], Any]) -> Any:
        new = make(id)
        defer_value(context, id, name, new)
        return new

    return made


def defer_value(context: CallContext, id: str, name: str, value: Any) -> None:
    """Record *value* with whatever is recorded next, and before the next call is made."""
    run = context.run
    assert run is not None
    entry = Effect(
        id=id, name=name, key="", policy="retry", done=True, value=msgspec.Raw(encode(value))
    )
    run.ledger.defer(entry, context.spot)
