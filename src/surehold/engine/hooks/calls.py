"""Calls of user code that cannot hang, kill or starve the caller.

A plain function runs on a daemon thread of a pool, a coroutine function on the caller's event loop
or, for a blocking caller, on a private one. A call that does not answer in time is abandoned: it
may run for ever, but no later call waits for it and no interpreter stays alive because of it.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from surehold.storage.base import start_thread

_IDLE_SECONDS = 10.0
"""Seconds that a pool thread waits for more work before it ends."""
_GRACE_SECONDS = 0.1
"""Seconds for the private loop to accept a cancellation; after that it is stuck."""

Function = Callable[..., Any]


class Call(msgspec.Struct, frozen=True):
    """A function to call, and the time to wait for it."""

    function: Function
    args: tuple[Any, ...]
    is_async: bool
    timeout: float


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of a call: a value, an error, or still pending."""

    value: Any = None
    error: BaseException | None = None
    pending: Future[CallOutcome] | asyncio.Future[CallOutcome] | None = None
    """The call itself, if it was abandoned; it is done when the code at last comes back."""


class Calls:
    """Makes calls within their time limits, for blocking and for async callers."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._pool = _Pool()
        self._loop = _PrivateLoop()

    def _survive_fork(self) -> None:
        # Threads do not live on in the child, and one of them may have held a lock.
        if self._pid != os.getpid():
            self._renew()

    def make(self, call: Call) -> CallOutcome:
        """Make *call* and wait for it."""
        self._survive_fork()
        if call.is_async:
            return self._loop.run(call.function, call.args, call.timeout)
        started = monotonic()
        future = self._pool.start(call.function, call.args)
        try:
            outcome = future.result(call.timeout)
        except TimeoutError:
            future.cancel()
            return CallOutcome(pending=future)
        if inspect.isawaitable(outcome.value):
            left = call.timeout - (monotonic() - started)
            return self._loop.run(lambda: outcome.value, (), max(0.0, left))
        return outcome

    async def make_async(self, call: Call) -> CallOutcome:
        """Make *call* and await it. Cancelling the caller abandons the call."""
        self._survive_fork()
        started = monotonic()
        if call.is_async:
            outcome = await _await_outcome(
                asyncio.ensure_future(_guarded(call.function, call.args)), call.timeout
            )
        else:
            future = self._pool.start(call.function, call.args)
            outcome = await _await_outcome(asyncio.wrap_future(future), call.timeout)
            if outcome.pending is not None:
                return CallOutcome(pending=future)
            if inspect.isawaitable(outcome.value):
                left = call.timeout - (monotonic() - started)
                task = asyncio.ensure_future(_guarded(lambda value: value, (outcome.value,)))
                outcome = await _await_outcome(task, max(0.0, left))
        if isinstance(outcome.error, KeyboardInterrupt) and call.is_async:
            # On the caller's own thread this is its user's Ctrl-C and not the handler's doing.
            raise outcome.error
        return outcome


async def _await_outcome(future: asyncio.Future[CallOutcome], timeout: float) -> CallOutcome:
    try:
        await asyncio.wait({future}, timeout=timeout)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if future.cancelled():
        return CallOutcome(error=asyncio.CancelledError())
    if future.done():
        return future.result()
    future.cancel()
    return CallOutcome(pending=future)


async def _guarded(function: Function, args: tuple[Any, ...]) -> CallOutcome:
    # A SystemExit that reaches a task would stop the whole event loop.
    try:
        return CallOutcome(await function(*args))
    except BaseException as error:
        return CallOutcome(error=error)


class _Pool:
    """Daemon threads, one for each call at work, that end when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []

    def start(self, function: Function, args: tuple[Any, ...]) -> Future[CallOutcome]:
        future: Future[CallOutcome] = Future()
        job = _Job(future, copy_context(), function, args)
        worker = self._rested()
        if worker is None:
            worker = _Worker(self._lock, self._idle)
            try:
                start_thread(worker)
            except RuntimeError as error:  # the system has no thread left to give
                future.set_result(CallOutcome(error=error))
                return future
        worker.inbox.put(job)
        return future

    def _rested(self) -> _Worker | None:
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive():
                    return worker
        return None


class _Job(NamedTuple):
    future: Future[CallOutcome]
    context: Context
    function: Function
    args: tuple[Any, ...]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            outcome = CallOutcome(self.context.run(self.function, *self.args))
        except BaseException as error:
            outcome = CallOutcome(error=error)
        self.future.set_result(outcome)


class _Worker(threading.Thread):
    def __init__(self, lock: threading.Lock, idle: list[_Worker]) -> None:
        super().__init__(name="surehold-hook", daemon=True)
        self.inbox: SimpleQueue[_Job] = SimpleQueue()
        self._lock = lock
        self._idle = idle

    def run(self) -> None:
        self.inbox.get().run()
        while True:
            with self._lock:
                self._idle.append(self)
            try:
                job = self.inbox.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self in self._idle:
                        self._idle.remove(self)
                        return
                # It was taken from the list in this very moment: its job is on the way.
                job = self.inbox.get()
            job.run()
            # What was called must not be kept alive by an idle thread.
            del job


class _PrivateLoop:
    """One event loop on a daemon thread, started on first use, replaced when stuck."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, function: Function, args: tuple[Any, ...], timeout: float) -> CallOutcome:
        try:
            loop = self._current()
        except RuntimeError as error:  # the system has no thread left to give
            return CallOutcome(error=error)
        future: Future[CallOutcome] = Future()
        context = copy_context()
        tasks: list[asyncio.Task[CallOutcome]] = []

        def begin() -> None:
            task = loop.create_task(_guarded(function, args), context=context)
            task.add_done_callback(finish)
            tasks.append(task)

        def finish(task: asyncio.Task[CallOutcome]) -> None:
            ended = (
                CallOutcome(error=asyncio.CancelledError()) if task.cancelled() else task.result()
            )
            future.set_result(ended)

        _ask(loop, begin)
        try:
            return future.result(timeout)
        except TimeoutError:
            accepted = threading.Event()

            def cancel() -> None:
                accepted.set()
                tasks[0].cancel()

            if not (_ask(loop, cancel) and accepted.wait(_GRACE_SECONDS)):
                self._give_up(loop)
            return CallOutcome(pending=future)

    def _current(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run_for_ever, args=(loop,), name="surehold-hook-loop", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop
                weakref.finalize(self, _retire, loop).atexit = False
            return self._loop

    def _give_up(self, stuck: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            if self._loop is stuck:
                self._loop = None
        _retire(stuck)


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _retire(loop: asyncio.AbstractEventLoop) -> None:
    """Let *loop* end once everything on it has."""

    def begin() -> None:
        others = asyncio.all_tasks(loop)

        async def stop() -> None:
            if others:
                await asyncio.wait(others)
            loop.stop()

        loop.create_task(stop())

    _ask(loop, begin)


def _ask(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Have *loop* call *callback*; False if a handler has closed the loop."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True
