"""Drivers of code that is written once for threads and for event loops.

Such code is a generator: it yields requests, and the driver sends the results back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, TypeVar

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Do each of *steps* with *do*; return what they return.

    The result of *do* is sent in, and its error is thrown in.

    >>> def total():
    ...     return (yield "one") + (yield "three")
    >>> drive(total(), len)
    8
    """
    try:
        step = next(steps)
        while True:
            try:
                result = do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def settled(call: Callable[[], Any]) -> Any:
    """The result of *call*, awaited if it is awaitable: a `do` for `drive_async`."""
    made = call()
    return await made if isawaitable(made) else made


async def drive_async(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """As `drive`, each step awaited."""
    try:
        step = next(steps)
        while True:
            try:
                result = await do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
