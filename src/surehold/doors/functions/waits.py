"""Durable waits: for a time, for an event that others answer, for a message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias

import msgspec

from surehold.core.driving import drive, drive_async
from surehold.core.policy import check_above_zero, is_duration
from surehold.core.records import Answer, Effect, Message, Timer
from surehold.core.values import decode
from surehold.engine.commit import in_event_loop, in_thread
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.messages import check_topic
from surehold.engine.runs.positions import (
    BRANCH,
    Branch,
    CallContext,
    CallOrder,
    StepContext,
    call_context,
)
from surehold.errors import Interrupted, UsageError

_SHORT = 1.0
"""Seconds that are waited for without saying so in the journal."""
_POLL = 0.2
_FIRST_LOOK = 0.02
_LONGEST_REST = 2.0


def sleep(seconds: float) -> Any:
    """Wait so many seconds from when the run first came here; awaited in async code.

    The end of the wait is recorded. In a workflow started with ``wait=False`` the run is then
    `waiting` and the process free; a resume after that time continues it. A step that must not be
    repeated keeps the process.
    """
    if not is_duration(seconds):
        raise UsageError(f"sleep({seconds!r})", hint="give a number of seconds from 0 to 1e9")
    context = call_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        return asyncio.sleep(seconds) if in_event_loop() else time.sleep(seconds)
    return _wait(_Wait(context, run, "sleep", seconds, event=False))


def wait_for(event: str, *, timeout: float | None = None) -> Any:
    """Wait until ``surehold.answer(run_id, event, value)`` and give the value.

    After *timeout* seconds it is a `TimeoutError`, on every replay too. Awaited in async code.
    In a workflow started with ``wait=False`` the process is free meanwhile, unless a step waits
    that must not be repeated.
    """
    check_above_zero(timeout=timeout)
    context = call_context()
    run = context.run if context is not None else None
    if not isinstance(context, CallOrder) or run is None:
        raise UsageError("wait_for() needs a workflow", hint="call it in a @surehold.workflow")
    if type(event) is not str or not event or event == "sleep":
        raise UsageError(f"{event!r} cannot name an event", hint="choose another name")
    return _wait(_Wait(context, run, event, timeout, event=True))


def receive(topic: str, *, timeout: float | None = None) -> Any:
    """Take the next message of *topic* that was sent to this run.

    ``surehold.send(run_id, topic, value)`` sends one. Messages are kept from when they are sent,
    and each is taken once, in the order of the journal; a replay gives the same ones. Without a
    message the run waits: in a workflow started with ``wait=False``, and in a node of a graph, the
    process is free meanwhile, unless a step waits that must not be repeated. After *timeout*
    seconds it is a `TimeoutError`, on every replay too. Awaited in async code.
    """
    check_above_zero(timeout=timeout)
    return receive_or_ask(topic, timeout, None)


def receive_or_ask(topic: str, timeout: float | None, ask: Callable[[], object] | None) -> Any:
    """`receive` in a run that calls *ask* when it comes here again, still waiting.

    *ask* may send the message.
    """
    check_topic(topic)
    context = call_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        raise UsageError(
            "receive() needs a run", hint="call it in a workflow, a surehold.run block or a node"
        )
    return _wait(_Wait(context, run, topic, timeout, event=True, mail=True, ask=ask))


_Action: TypeAlias = float | Callable[[], Any]
_Actions = Generator[_Action, Any, Any]
"""Seconds to rest, or a call that blocks only for a moment, whose result is sent back."""


class _Wait:
    """One wait at its position in the run."""

    def __init__(
        self,
        context: CallContext,
        run: OpenRun,
        name: str,
        seconds: float | None,
        *,
        event: bool,
        mail: bool = False,
        ask: Callable[[], object] | None = None,
    ) -> None:
        self.context = context
        self.ledger = run.ledger
        self.run = run
        self.what = f"wait_for({name!r})" if event else f"sleep({seconds})"
        self._name = name
        self._seconds = seconds
        self._event = event
        self._mail = mail
        self._ask = ask
        # Left in the middle of a call that must not be made again, the run would be in doubt.
        context.check()
        frees = context.frees if isinstance(context, CallOrder) else False
        if mail:
            self.what, name = f"receive({name!r})", f"receive {name}"
            frees = frees or isinstance(context, StepContext)
        # The cleanup of a cancelled run has a time limit, which a process watches.
        self._frees = frees and context.repeats and run.cleanup_until is None
        self._id = context.take(name, None)
        self._branch: Branch | None = None
        self.spot = context.spot

    def actions(self) -> _Actions:
        """Yield the actions to perform until the wait has ended."""
        known: Effect | Message | None
        branch = self._branch = BRANCH.get()
        self.context.check_cancel(self._id)
        timer = self.ledger.find(Timer, self._id)
        if self._mail and (timer is None or not timer.expired):
            known = self.ledger.find(Effect, self._id)
            known = known or (yield self._next_message)
            if known is not None:
                return self._value(known)
        if timer is None:
            self.context.check_new(self._id)
            until = None if self._seconds is None else time.time() + self._seconds
            timer = Timer(
                id=self._id, name=self._name, until=until, event=self._event, mail=self._mail
            )
            yield partial(self.ledger.write_now, timer, self.spot)
        elif self._ask is not None and not timer.expired:
            yield self._ask
            yield self._look
        if branch is None:
            return (yield from self._until_over(timer))
        branch.know(timer, self.spot)
        branch.wait(1)
        try:
            return (yield from self._until_over(timer))
        finally:
            branch.wait(-1)

    def _until_over(self, timer: Timer) -> _Actions:
        """Wait until *timer* has ended, or leave the run."""
        branch, marked, looks = self._branch, False, 0
        # A task of the user's own, as in asyncio.wait, which may await calls in progress as well.
        beside = self._frees and branch is None and self.run.leaving.is_beside
        known: Message | Answer | None
        while not timer.expired:
            self.context.check_cancel(self._id)
            known = (yield self._take) if self._mail else self.ledger.find(Answer, self._id)
            left = None if timer.until is None else timer.until - time.time()
            if known is not None or (left is not None and left <= 0):
                if known is None and timer.event:
                    ended = msgspec.structs.replace(timer, expired=True)
                    if not (yield partial(self.run.expire, ended, self.spot)):
                        yield self._look
                        continue
                    timer = ended
                if marked:
                    yield partial(self._mark, "running")
                if known is not None:
                    return self._value(known)
                if not timer.event:
                    self.ledger.defer(msgspec.structs.replace(timer, expired=True), self.spot)
                    return None
                break
            short = left is not None and left < _SHORT
            if self._frees and not short:
                if isinstance(self.context, CallOrder):
                    self.context.check_stop()
                # Other branches may only just have begun.
                if branch is not None:
                    leaves = looks and branch.race.waits
                else:
                    leaves = not beside or (looks and not self.run.stop.in_unit)
                if leaves:
                    raise self.context.leave(self._waits())
            if not marked and not short and branch is None and not beside:
                yield partial(self._mark, "waiting")
                marked = True
                if timer.event and not self.run.stop.in_unit:
                    self.run.stays()
            rest = _POLL if timer.event or branch is not None or beside else _LONGEST_REST
            if (branch is not None or beside) and not looks:
                rest = _FIRST_LOOK
            looks += 1
            yield rest if left is None else min(left, rest)
            yield self._look
        if not timer.event:
            return None
        what = "no message of topic" if self._mail else "event"
        late = "came" if self._mail else "did not come"
        raise TimeoutError(f"{what} {self._name!r} {late} within {self._seconds} s")

    def _take(self) -> Message | None:
        """The next message; None if none is known here."""
        self.context.check_new(self._id)
        message = self.ledger.take_message(self._name, self._id, self.run.run_id, self.spot)
        if message is not None and self._branch is not None:
            self._branch.taken = message, None
        return message

    def _value(self, known: Effect | Message | Answer) -> Any:
        value = decode(bytes(known.value))
        if isinstance(known, Message) and self._branch is not None:
            self._branch.taken = known, value
        return value

    def _next_message(self) -> Message | None:
        """The next message, also one that was sent just now."""
        message = self._take()
        if message is None:
            self._look()
            message = self._take()
        return message

    def _waits(self) -> Interrupted:
        what = f"event {self._name!r}" if self._event else "a time"
        if self._mail:
            what = f"a message of topic {self._name!r}"
        run_id = self.run.run_id
        return Interrupted(f"run {run_id!r} waits for {what}", run_id=run_id)

    def _mark(self, status: str) -> None:
        if isinstance(self.context, CallOrder):
            self.context.mark(status)

    def _look(self) -> None:
        self.run.refresh()


def _wait(wait: _Wait) -> Any:
    if wait.context.in_async:
        return to_await(wait.what, drive_async(wait.actions(), _do_async))
    return drive(wait.actions(), _do)


def _do(action: _Action) -> Any:
    return time.sleep(action) if isinstance(action, float) else action()


async def _do_async(action: _Action) -> Any:
    if isinstance(action, float):
        return await asyncio.sleep(action)
    # What it takes must not be lost with a cancellation.
    return await in_thread(action)
