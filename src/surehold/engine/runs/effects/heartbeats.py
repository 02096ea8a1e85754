"""Signs of life of a long call: progress for the next attempt, and time limits."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from surehold.core.policy import RetryPolicy
from surehold.core.records import Heartbeat
from surehold.core.values import decode, encode
from surehold.engine.commit import in_event_loop
from surehold.engine.runs.effects.awaiting import to_await
from surehold.engine.runs.positions import call_context
from surehold.errors import UsageError
from surehold.storage.base import start_thread

if TYPE_CHECKING:
    from surehold.engine.runs.effects.effect_call import EffectCall

T = TypeVar("T")


class TimedOut(Exception):
    """The call took longer than its time limit: whether it happened is not known."""


def _nothing() -> None:
    pass


class _Attempt:
    """One attempt of a call, by which code inside it finds the call."""

    def __init__(self, call: EffectCall | None) -> None:
        self.call = call
        self.beats: Callable[[], object] = _nothing
        """Called at each heartbeat, in whatever thread."""


_HERE: contextvars.ContextVar[_Attempt | None] = contextvars.ContextVar("attempt", default=None)


def heartbeat(progress: Any = None) -> Any:
    """Say from inside a step, effect or tool that it lives, and its *progress*.

    *progress* is durable when this returns, in one commit, and is what `last_heartbeat` gives to
    the next attempt, in another process too. An attempt with ``heartbeat_timeout=`` that is silent
    for longer is given up, as one that took longer than its ``timeout=``. Outside a run nothing is
    recorded. Awaited in async code.
    """
    found = _found("heartbeat()")
    if found is None or found.call is None:
        if found is not None:
            found.beats()
        return asyncio.sleep(0) if in_event_loop() else None
    entry = Heartbeat(id=found.call.place, values=msgspec.Raw(encode(progress)))
    ledger, spot, inner = found.call.ledger, found.call.spot, call_context()
    awaited = None if inner is None else inner.awaited
    if in_event_loop() if awaited is None else awaited:

        async def write() -> None:
            await ledger.write(entry, spot)
            found.beats()

        return to_await("heartbeat()", write())
    ledger.write_now(entry, spot)
    found.beats()
    return None


def last_heartbeat(default: Any = None) -> Any:
    """The progress that an earlier attempt of this step told last, or else *default*."""
    found = _found("last_heartbeat()")
    if found is None or found.call is None:
        return default
    known = found.call.ledger.find(Heartbeat, found.call.place)
    return default if known is None else decode(bytes(known.values))


def _found(what: str) -> _Attempt | None:
    found = _HERE.get()
    if found is None and (context := call_context()) is not None and context.run is not None:
        raise UsageError(
            f"{what} is not called in a recorded call", hint="call it in a step, effect or tool"
        )
    return found


async def attempt(
    call: EffectCall | None, attempts: RetryPolicy, made: Callable[[], Awaitable[T]]
) -> T:
    """Return the result of one attempt of an awaited call, or raise `TimedOut`."""
    here = _Attempt(call)
    token = _HERE.set(here)
    try:
        if attempts.timeout is None and attempts.heartbeat_timeout is None:
            return await made()
        return await _limited(here, attempts, made)
    finally:
        _HERE.reset(token)


async def _limited(here: _Attempt, attempts: RetryPolicy, made: Callable[[], Awaitable[T]]) -> T:
    loop, silence = asyncio.get_running_loop(), attempts.heartbeat_timeout
    end = None if attempts.timeout is None else loop.time() + attempts.timeout
    try:
        async with asyncio.timeout(None) as limit:

            def begin() -> None:
                if here.beats is beat and not limit.expired():
                    quiet = None if silence is None else loop.time() + silence
                    limit.reschedule(min(one for one in (end, quiet) if one is not None))

            def beat() -> None:
                loop.call_soon_threadsafe(begin)

            here.beats = beat
            begin()
            try:
                return await made()
            finally:
                here.beats = _nothing
    except TimeoutError as error:
        if limit.expired():
            raise TimedOut from error
        raise


def attempt_now(call: EffectCall | None, attempts: RetryPolicy, made: Callable[[], T]) -> T:
    """Return the result of one attempt of a plain call, or raise `TimedOut`."""
    here = _Attempt(call)
    token = _HERE.set(here)
    try:
        if attempts.timeout is None and attempts.heartbeat_timeout is None:
            return made()
        limits = (attempts.timeout, "surehold-step", attempts.heartbeat_timeout)
        value: T = call_in_thread(made, *limits, here)
        return value
    finally:
        _HERE.reset(token)


def call_in_thread(
    call: Callable[[], Any],
    seconds: float | None,
    name: str,
    silence: float | None = None,
    here: _Attempt | None = None,
) -> Any:
    """Return the result of *call*, or raise `TimedOut`; a slower call ends by itself.

    With *silence* it is given up, too, so many seconds after the last heartbeat *here*.
    """
    ended: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            ended.append((call(), None))
        except BaseException as error:
            ended.append((None, error))

    began = time.monotonic()
    beats = [began]
    if here is not None:
        here.beats = lambda: beats.__setitem__(0, time.monotonic())
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), name=name, daemon=True)
    start_thread(thread)
    while not ended:
        ends = [began + seconds] if seconds is not None else []
        ends += [beats[0] + silence] if silence is not None else []
        thread.join(max(0.0, min(ends) - time.monotonic()))
        if ended or not thread.is_alive():
            break
        now = time.monotonic()
        if (seconds is not None and now >= began + seconds) or (
            silence is not None and now >= beats[0] + silence
        ):
            raise TimedOut
    value, error = ended[0]
    if error is not None:
        raise error
    return value
