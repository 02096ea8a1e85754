"""Calls of user code that cannot hang or kill the caller.

A plain function runs on a daemon thread of its own, a coroutine function on the caller's event
loop or, for a blocking caller, on a private one. A call that does not answer in time is abandoned:
it may run for ever, but no later call waits for it and no interpreter stays alive because of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from time import monotonic
from typing import Any, TypeVar

import msgspec

from surehold.storage.base import start_thread

T = TypeVar("T")


class Call(msgspec.Struct, frozen=True):
    """A function to call, and the time to wait for it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    is_async: bool
    timeout: float


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call: a value, an error, or no answer in time."""

    value: Any = None
    error: BaseException | None = None
    abandoned: bool = False


class Calls:
    """Makes calls within their time limits, for blocking and for async callers."""

    def __init__(self) -> None:
        self._private: _PrivateLoop | None = None

    def make(self, call: Call) -> CallOutcome:
        """Make *call* and wait for it."""
        started = monotonic()
        try:
            if not call.is_async:
                outcome = _wait(_on_thread(call), call.timeout)
                if not inspect.isawaitable(value := outcome.value):
                    return outcome
                call = msgspec.structs.replace(call, function=lambda *args: value)
            private = self._loop()
            outcome = _wait(private.start(call), call.timeout - (monotonic() - started))
        except RuntimeError as error:  # the system has no thread left to give
            return CallOutcome(error=error)
        if outcome.abandoned:
            self._private = None  # it may be stuck
        return outcome

    def _loop(self) -> _PrivateLoop:
        # A thread does not live on in a forked child.
        if self._private is None or self._private.pid != os.getpid() or self._private.is_closed():
            self._private = _PrivateLoop()
        return self._private

    async def make_async(self, call: Call) -> CallOutcome:
        """Make *call* and await it. Cancelling the caller abandons the call."""
        task = asyncio.ensure_future(_made(call))
        try:
            await asyncio.wait({task}, timeout=call.timeout)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            return CallOutcome(abandoned=True)
        outcome = CallOutcome(error=CancelledError()) if task.cancelled() else task.result()
        if isinstance(outcome.error, KeyboardInterrupt) and call.is_async:
            # On the caller's own thread this is its user's Ctrl-C and not the handler's doing.
            raise outcome.error
        return outcome


async def _made(call: Call) -> CallOutcome:
    # A SystemExit that reaches a task would stop the whole event loop.
    try:
        if call.is_async:
            return CallOutcome(await call.function(*call.args))
        outcome = await asyncio.wrap_future(_on_thread(call))
        awaitable = inspect.isawaitable(outcome.value)
        return CallOutcome(await outcome.value) if awaitable else outcome
    except BaseException as error:
        return CallOutcome(error=error)


def _on_thread(call: Call) -> Future[CallOutcome]:
    future: Future[CallOutcome] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def run() -> None:
        try:
            outcome = CallOutcome(context.run(call.function, *call.args))
        except BaseException as error:
            outcome = CallOutcome(error=error)
        future.set_result(outcome)

    start_thread(threading.Thread(target=run, name="surehold-hook", daemon=True))
    return future


def _wait(future: Future[CallOutcome], timeout: float) -> CallOutcome:
    try:
        return future.result(timeout)
    except TimeoutError:
        future.cancel()
        return CallOutcome(abandoned=True)
    except CancelledError as error:
        return CallOutcome(error=error)


class _PrivateLoop:
    """An event loop on a daemon thread; dropping the object ends it after its tasks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=_run_for_ever, args=(self._loop,), name="surehold-hook-loop", daemon=True
        )
        try:
            start_thread(thread)
        except BaseException:
            self._loop.close()
            raise
        weakref.finalize(self, _retire, self._loop).atexit = False

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def start(self, call: Call) -> Future[CallOutcome]:
        return _begin(_made(msgspec.structs.replace(call, is_async=True)), self._loop)


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _retire(loop: asyncio.AbstractEventLoop) -> None:
    async def stop() -> None:
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        loop.stop()

    with suppress(RuntimeError):
        _begin(stop(), loop)


def _begin(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # a handler has closed the loop
        work.close()
        raise
