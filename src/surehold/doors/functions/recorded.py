"""Recorded time, chance, patches and branches of durable functions."""

from __future__ import annotations

import asyncio
import inspect
import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from surehold.core.records import Effect
from surehold.core.values import decode, encode
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.positions import (
    OPEN_RUN,
    CallContext,
    CallOrder,
    call_context,
    check_awaited,
)
from surehold.errors import ShapeError, UsageError

T = TypeVar("T")


def now() -> datetime:
    """The time, in UTC; in a run the recorded one, the same on every replay."""
    return _recorded("now", lambda: datetime.now(UTC))


def random() -> float:
    """A number from 0 up to 1; in a run the recorded one, the same on every replay."""
    return _recorded("random", _random.random)


def uuid4() -> _uuid.UUID:
    """A random UUID; in a run the recorded one, the same on every replay."""
    return _recorded("uuid4", _uuid.uuid4)


def patched(name: str) -> bool:
    """True in runs that reached this point with the new code, False in older ones.

    Put new code behind it: a run that was recorded without the patch finishes on the old code.
    """
    context = call_context()
    if not isinstance(context, CallOrder):
        return True
    context.check()
    id = context.at_patch(f"patch {name}")
    if id is None:
        return False
    if context.run.ledger.find(Effect, id) is None:
        _defer(context, id, f"patch {name}", True)
    return True


def gather(
    *awaitables: Awaitable[Any], return_exceptions: bool = False
) -> Coroutine[Any, Any, list[Any]]:
    """Await all of these at once; give their results in order.

    Each has positions of its own, so coroutines may call steps in whatever order they come to
    run. All are awaited to their end; then the first exception, in the order of *awaitables*, is
    raised or, with *return_exceptions*, each failure is in the place of its result.
    """
    for one in awaitables:
        if not inspect.isawaitable(one):
            raise UsageError(
                f"gather() cannot await {one!r:.60}",
                hint="give calls that are awaited, one argument each: gather(*calls)",
            )
    check_awaited("gather()", "call the steps one after another")
    return to_await("gather()", _gather(awaitables, return_exceptions))


async def _gather(awaitables: tuple[Awaitable[Any], ...], return_exceptions: bool) -> list[Any]:
    context = call_context()
    orders: list[CallContext | None] = [context] * len(awaitables)
    if isinstance(context, CallOrder):
        orders = [*context.branches(len(awaitables))]
    pairs = zip(awaitables, orders, strict=True)
    tasks = [asyncio.ensure_future(_in_order(one, order)) for one, order in pairs]
    try:
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        raise
    for one in ended:
        if isinstance(one, BaseException) and not (
            return_exceptions and isinstance(one, Exception)
        ):
            raise one
    return [*ended]


async def _in_order(awaitable: Awaitable[T], order: CallContext | None) -> T:
    if order is not None and isinstance(order, CallOrder):
        OPEN_RUN.set(order)
    return await awaitable


def _recorded(name: str, make: Callable[[], T]) -> T:
    context = call_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        return make()
    context.check()
    id, known, _ = context.locate(name, None, "")
    if known is not None:
        if not known.done:
            wrong = ShapeError(f"{id} is recorded as a call in doubt", run_id=run.run_id)
            raise context.leave(wrong)
        value: T = decode(bytes(known.value))
        return value
    made = make()
    _defer(context, id, name, made)
    return made


def _defer(context: CallContext, id: str, name: str, value: Any) -> None:
    """Record *value* with whatever is recorded next, and before the next call is made."""
    run = context.run
    assert run is not None
    entry = Effect(
        id=id, name=name, key="", policy="retry", done=True, value=msgspec.Raw(encode(value))
    )
    run.ledger.defer(entry, context.spot)
