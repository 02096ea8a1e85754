"""Recorded time, chance, patches and branches of durable functions."""

from __future__ import annotations

import asyncio
import inspect
import random as _random
import uuid as _uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, Literal, TypeVar, overload

import msgspec

from surehold.core.records import Answer, Attributes, Effect, Published
from surehold.core.values import decode, encode
from surehold.engine.commit import in_event_loop
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.messages import Attribute, header_value
from surehold.engine.runs.positions import (
    CallContext,
    CallOrder,
    call_context,
    check_awaited,
    defer_value,
    recorded_value,
)
from surehold.errors import Cancelled, UsageError

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


def now() -> datetime:
    """The time, in UTC; in a run the recorded one, the same on every replay."""
    return recorded_value("now", lambda _: datetime.now(UTC))


def random() -> float:
    """A number from 0 up to 1; in a run the recorded one, the same on every replay."""
    return recorded_value("random", lambda _: _random.random())


def uuid4() -> _uuid.UUID:
    """A random UUID; in a run the recorded one, the same on every replay."""
    return recorded_value("uuid4", lambda _: _uuid.uuid4())


def publish(**values: Any) -> Any:
    """Show *values* to others while the run works: a status, a progress, an address.

    They are merged, by name, with those published before, and durable when this returns.
    ``handle.status_of()``, ``surehold show`` and the page show them. A replay publishes nothing
    again. Outside a run nothing happens. Awaited in async code.

    >>> publish(status="reading", progress=0.4)
    """
    if not values:
        raise UsageError("publish() has nothing to show", hint="publish(status='reading')")
    return _keep("publish", Published, values)


def set_attributes(**values: Attribute | None) -> Any:
    """Set *values* by which the run is found: texts, numbers, truth values or times.

    They are merged, by name, with those set before; None removes one. ``surehold runs --where`` and
    `find_runs` look for them, in storages of any size. They are written unencrypted, as names and
    tags are. A replay sets nothing again. Awaited in async code.

    >>> set_attributes(customer="c-7", amount=12.5)
    """
    for name, value in values.items():
        header_value(name, value)
    return _keep("set_attributes", Attributes, values)


def _keep(what: str, kind: type[Published], values: Mapping[str, Any]) -> Any:
    """Merge *values* with those that the run keeps; once at this position."""

    def merge(run: OpenRun) -> Published:
        entry = kind(values=msgspec.Raw())
        before = run.ledger.find(kind, entry.id)
        merged = {**(decode(bytes(before.values)) if before is not None else {}), **values}
        if isinstance(entry, Attributes):
            merged = {name: value for name, value in merged.items() if value is not None}
            entry.found_by = {name: header_value(name, value) for name, value in merged.items()}
        entry.values = msgspec.Raw(encode(merged))
        return entry

    return write_once(what, merge)


def write_once(what: str, make: Callable[[OpenRun], Published | Answer]) -> Any:
    """Write the note that *make* gives, durable and once at this position.

    Outside a run nothing happens. Awaited in async code.
    """
    context = call_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        return asyncio.sleep(0) if in_event_loop() else None
    entry = _new_entry(context, run, what, make)
    if context.in_async:
        return to_await(f"{what}()", _show(context, entry))
    if entry is not None:
        run.ledger.write_now(entry, context.spot)
    return None


def _new_entry(
    context: CallContext,
    run: OpenRun,
    what: str,
    make: Callable[[OpenRun], Published | Answer],
) -> Published | Answer | None:
    """The note to write, and its place; None if it was written before."""
    context.check()
    id, known, _ = context.locate(what, None, "")
    if known is not None:
        return None
    context.check_new(id)
    entry = make(run)
    defer_value(context, id, what, None)
    return entry


async def _show(context: CallContext, entry: Published | Answer | None) -> None:
    if entry is not None and context.run is not None:
        await context.run.ledger.write(entry, context.spot)


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
        defer_value(context, id, f"patch {name}", True)
    return True


@overload
def gather(a: Awaitable[T], b: Awaitable[U], /) -> Coroutine[Any, Any, tuple[T, U]]: ...
@overload
def gather(
    a: Awaitable[T], b: Awaitable[U], c: Awaitable[V], /
) -> Coroutine[Any, Any, tuple[T, U, V]]: ...
@overload
def gather(
    *awaitables: Awaitable[T], return_exceptions: Literal[False] = False
) -> Coroutine[Any, Any, list[T]]: ...
@overload
def gather(
    *awaitables: Awaitable[T], return_exceptions: bool
) -> Coroutine[Any, Any, list[T | Exception]]: ...
def gather(
    *awaitables: Awaitable[Any], return_exceptions: bool = False
) -> Coroutine[Any, Any, Any]:
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
    if context is not None:
        context.check_leaving()
    recorded = context is not None and context.run is not None
    branches = context.branches(len(awaitables)) if context is not None and recorded else ()
    pairs = zip_longest(awaitables, branches)
    tasks = [asyncio.ensure_future(_in_order(one, branch)) for one, branch in pairs]
    try:
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        raise
    for one in sorted(ended, key=lambda one: not isinstance(one, Cancelled)):
        if isinstance(one, BaseException) and not (
            return_exceptions and isinstance(one, Exception)
        ):
            raise one
    return [*ended]


async def _in_order(awaitable: Awaitable[T], branch: CallContext | None) -> T:
    if branch is not None:
        branch.enter()
    return await awaitable
