"""Races: the first of several calls or waits wins, and its outcome is recorded."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from surehold.core.records import Effect
from surehold.core.values import decode, encode
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.positions import (
    BRANCH,
    Branch,
    CallContext,
    Race,
    call_context,
    check_awaited,
)
from surehold.errors import Cancelled, Interrupted, ShapeError, Signal, UsageError

T = TypeVar("T")
Losers = Literal["cancel", "finish"]


class Selected(NamedTuple):
    """The outcome of `select`: the name that won, and its value."""

    name: str
    value: Any


def race(*awaitables: Awaitable[T], losers: Losers = "cancel") -> Coroutine[Any, Any, T]:
    """Await the first of these to end, and return its value or raise its exception.

    Each may be a step, an effect, a child workflow, `sleep`, `wait_for`, `receive`, or a coroutine
    of several of them. Which one won is recorded: a replay awaits that one alone. The others are
    cancelled: an effect in flight is finished and recorded first, a message that was taken at the
    same moment is given back. With ``losers="finish"`` they are awaited to their end, and their
    outcomes dropped. In a workflow started with ``wait=False``, the process is free once nothing
    but waits is left in the race.
    """
    return to_await("race()", _valued(_checked("race()", awaitables, losers), losers))


def select(
    *, losers: Losers = "cancel", **awaitables: Awaitable[Any]
) -> Coroutine[Any, Any, Selected]:
    """`race` by name: returns the name of the first to end, and its value.

    ``name, value = await surehold.select(work=slow(), stop=surehold.receive("stop"))``
    """
    return to_await("select()", _named(awaitables, losers))


async def _named(awaitables: dict[str, Awaitable[Any]], losers: Losers) -> Selected:
    number, value = await _race(_checked("select()", [*awaitables.values()], losers), losers)
    return Selected([*awaitables][number], value)


async def _valued(awaitables: Sequence[Awaitable[T]], losers: Losers) -> T:
    return (await _race(awaitables, losers))[1]


def _checked(what: str, awaitables: Sequence[Awaitable[T]], losers: str) -> Sequence[Awaitable[T]]:
    if losers not in ("cancel", "finish"):
        raise UsageError(f"losers is {losers!r}", hint="'cancel' or 'finish'")
    if not awaitables:
        raise UsageError(f"{what} has nothing to await", hint="give calls that are awaited")
    for one in awaitables:
        if not inspect.isawaitable(one):
            raise UsageError(
                f"{what} cannot await {one!r:.60}",
                hint="give calls that are awaited, one argument each",
            )
    check_awaited(what, "receive(timeout=) and wait_for(timeout=) wait for the first of two")
    return awaitables


async def _race(awaitables: Sequence[Awaitable[T]], losers: Losers) -> tuple[int, T]:
    context = call_context()
    place = ""
    orders: Sequence[CallContext | None] = [context] * len(awaitables)
    if context is not None and context.run is not None:
        context.check()
        place, orders = context.race(len(awaitables))
        known = context.run.ledger.find(Effect, place)
        if known is not None:
            winner: int = decode(bytes(known.value))
            return winner, await _replayed(awaitables, orders, winner, losers)
        context.check_new(place)
    made = Race(len(awaitables))
    tasks = [
        asyncio.ensure_future(_run(one, order, branch))
        for one, order, branch in zip(awaitables, orders, made.branches, strict=True)
    ]
    try:
        number = await _first(tasks)
    except BaseException:
        await _stop(tasks)
        raise
    made.winner = made.branches[number]
    await (_stop(tasks) if losers == "cancel" else asyncio.wait(tasks))
    left = _left(tasks) if losers == "finish" else None
    if context is not None and context.run is not None:
        await _decide(context, place, number, made, tasks, orders, left)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # the outcome of a loser is dropped
    if left is not None:
        raise left
    return number, tasks[number].result()


async def _replayed(
    awaitables: Sequence[Awaitable[T]],
    orders: Sequence[CallContext | None],
    winner: int,
    losers: Losers,
) -> T:
    """The outcome of the branch that won, in an earlier execution."""
    if losers == "finish":
        pairs = zip(awaitables, orders, strict=True)
        tasks = [asyncio.ensure_future(_run(one, order, None)) for one, order in pairs]
        await asyncio.wait(tasks)
        if (left := _left(tasks)) is not None:
            raise left
        return tasks[winner].result()
    for number, one in enumerate(awaitables):
        if number != winner and isinstance(one, Coroutine):
            one.close()
        elif number != winner and isinstance(one, asyncio.Future):
            one.cancel()
    return await asyncio.ensure_future(_run(awaitables[winner], orders[winner], None))


async def _run(awaitable: Awaitable[T], order: CallContext | None, branch: Branch | None) -> T:
    if order is not None:
        order.enter()
    if branch is None:
        return await awaitable
    BRANCH.set(branch)
    try:
        return await awaitable
    except Interrupted:
        branch.left = True
        raise
    finally:
        branch.ended = True


async def _first(tasks: Sequence[asyncio.Future[T]]) -> int:
    """The number of the task that ends first, but for those that leave the run."""
    left: BaseException | None = None
    running = set(tasks)
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task not in done:
                continue
            error = None if task.cancelled() else task.exception()
            if isinstance(error, Interrupted):
                left = left or error
            elif isinstance(error, Signal | ShapeError | Cancelled):
                raise error
            else:
                return number
    assert left is not None
    raise left


def _left(tasks: Sequence[asyncio.Future[Any]]) -> Interrupted | None:
    """The signal of a task that waits, and is to be awaited by a later execution."""
    ended = [None if task.cancelled() else task.exception() for task in tasks]
    return next((error for error in ended if isinstance(error, Interrupted)), None)


async def _stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _decide(
    context: CallContext,
    place: str,
    number: int,
    made: Race,
    tasks: Sequence[asyncio.Future[Any]],
    orders: Sequence[CallContext | None],
    left: Interrupted | None,
) -> None:
    """Record the winner, and in the same append that nobody waits for the losers.

    With *left* the losers are waited for.
    """
    run = context.run
    assert run is not None
    for branch, task, order in zip(made.branches, tasks, orders, strict=True):
        if branch is made.winner or left is not None:
            continue
        run.leaving.withdraw(order, None if task.cancelled() else task.exception())
        if branch.taken is not None:
            message, value = branch.taken
            if task.cancelled() or (task.exception() is None and task.result() is value):
                run.ledger.put_back(message, run.run_id, context.spot)
        for timer, spot in branch.timers.values():
            run.ledger.end_wait(timer, spot)
    won = Effect(id=place, name="race", key="", policy="retry", done=True)
    won.value = msgspec.Raw(encode(number))
    await run.ledger.write(won, context.spot)
