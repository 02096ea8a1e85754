"""An exception that a replay raises is what the call raised, with what stands behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import surehold
from surehold import MemoryStorage
from surehold.engine.hooks import HookManager, RedactionHook
from surehold.engine.managers import CheckpointManager


class Declined(Exception):
    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


def caused() -> None:
    raise Declined("card", code=51) from TimeoutError("bank")


def in_context() -> None:
    try:
        raise OSError(5, "disk")
    except OSError:
        raise Declined("while it was handled", code=1)  # noqa: B904


def hidden() -> None:
    try:
        raise OSError(5, "disk")
    except OSError:
        raise Declined("on its own", code=1) from None


def noted() -> None:
    error = ValueError("bad")
    error.add_note("seen at noon")
    error.order = 7  # type: ignore[attr-defined]
    raise error


def grouped() -> None:
    raise ExceptionGroup("two of three", [ValueError("a"), Declined("b", code=2)])


def in_a_circle() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def deep() -> None:
    error: Exception = ValueError("0")
    for number in range(1, 40):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    raise error


def cancelled_behind() -> None:
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError as stop:
        raise TimeoutError("late") from stop


RAISERS = [caused, in_context, hidden, noted, grouped, in_a_circle, deep, cancelled_behind]


def told(error: BaseException | None, *outer: BaseException) -> Any:
    """All of an exception that user code can look at, and of those behind it."""
    if not isinstance(error, Exception) or error in outer or len(outer) > 5:
        return None
    outer = (*outer, error)
    return (
        type(error),
        error.args if not isinstance(error, ExceptionGroup) else error.message,
        {name: value for name, value in vars(error).items() if "surehold" not in name},
        [told(one, *outer) for one in getattr(error, "exceptions", ())],
        told(error.__cause__, *outer),
        told(error.__context__, *outer),
        error.__suppress_context__,
    )


def lives(door: str, raiser: Callable[[], None], storage: Any) -> list[Any]:
    """What the code around the call sees in the first life and in the second."""
    seen: list[Any] = []
    again = [False]

    class Died(BaseException):
        pass

    def look(error: Exception) -> None:
        seen.append(told(error))
        if not again[0]:
            raise Died

    @surehold.step
    def call() -> None:
        raiser()

    @surehold.step
    async def acall() -> None:
        raiser()

    @surehold.workflow(name="plain")
    def plain() -> None:
        try:
            call()
        except Exception as error:
            look(error)

    @surehold.workflow(name="awaited")
    async def awaited() -> None:
        try:
            await acall()
        except Exception as error:
            look(error)

    def loop() -> None:
        with surehold.run("r", storage=storage) as run:
            try:
                run.call(raiser)
            except Exception as error:
                look(error)

    starts: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain.run(run_id="r", storage=storage),
        "awaited": lambda: asyncio.run(awaited.run(run_id="r", storage=storage)),
        "loop": loop,
    }
    for again[0] in (False, True):
        with contextlib.suppress(Died):
            starts[door]()
    return seen


@pytest.mark.parametrize("door", ["plain", "awaited", "loop"])
@pytest.mark.parametrize("raiser", RAISERS)
def test_a_replayed_exception_is_what_was_raised(door: str, raiser: Any) -> None:
    first, second = lives(door, raiser, MemoryStorage())
    assert second == first


def test_secrets_are_taken_out_of_what_stands_behind_an_exception() -> None:
    secret = "sk-ant-api03-" + "x" * 24

    def raiser() -> None:
        error = ValueError("refused")
        error.add_note(f"called with {secret}")
        raise error from ConnectionError(f"key {secret}")

    storage = MemoryStorage()
    hooks = HookManager()
    hooks.register_hook(RedactionHook())
    manager = CheckpointManager(storage, hook_manager=hooks)
    _, second = lives("loop", raiser, manager)
    assert second[0] is ValueError and "x" * 24 not in repr(second)
