"""The execution of a generated program in one process: its calls, and the fault of this start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import surehold
from proof.graphs.outside import Outside
from surehold.errors import ShapeError, Signal, StorageUnavailableError
from surehold.storage.sqlite.storage import SQLiteStorage

__all__ = ["RUN", "Fault", "Runtime", "is_leaving"]

RUN = "run"


class Fault(NamedTuple):
    """The fault of one start: *kind* at point number *at*."""

    kind: str = "none"
    at: int = 0


def is_leaving(error: BaseException) -> bool:
    """True if a run is left with *error*."""
    return isinstance(error, Signal | ShapeError)


@dataclass
class Held:
    """A part of a loop's state that its code holds under a name of its own."""

    total: int = 0
    seen: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    newest: deque[int] = field(default_factory=lambda: deque(maxlen=3))
    by_digit: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, number: int) -> None:
        self.total += number
        self.seen.add(number)
        self.counts[number] += 1
        self.newest.append(number)
        self.by_digit[number % 10].append(number)


class Runtime:
    """The names that a generated program uses.

    A *point* is a call that begins or has happened, or a place between two calls. *forgetful* calls
    are not recorded, for the control.
    """

    def __init__(
        self, directory: Path, start: int, fault: Fault, *, awaited: bool, forgetful: bool = False
    ) -> None:
        self.outside = Outside(directory / "outside")
        self.awaited = awaited
        self.task: asyncio.Task[Any] | None = None
        self._network = directory / "network"
        self._start = start
        self._fault = fault
        self._forgetful = forgetful
        self._points = 0
        self.run: Any = None
        """The open run of a loop."""
        self.waits_for_events = True
        """False where a program waits by a question."""

    # Faults

    def point(self) -> None:
        """Let the fault of this start happen, if its turn has come."""
        self._points += 1
        if self._points != self._fault.at:
            return
        kind = self._fault.kind
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind in ("interrupt", "terminate"):
            self.outside.write("signal", self._start, "", "", "")
            os.kill(os.getpid(), signal.SIGINT if kind == "interrupt" else signal.SIGTERM)
        elif kind == "cancel" and self.task is not None:
            self.outside.write("signal", self._start, "", "", "")
            self.task.cancel()

    def watch_appends(self) -> None:
        """Let the faults happen that come at an append."""
        made, (kind, at) = 0, self._fault

        def faulty(append: Callable[..., Any]) -> Callable[..., Any]:
            def with_fault(*arguments: Any) -> Any:
                nonlocal made
                made += 1
                if made == at and kind == "kill before append":
                    os.kill(os.getpid(), signal.SIGKILL)
                if made >= at and kind == "disk":
                    raise StorageUnavailableError("the disk is gone")
                done = append(*arguments)
                if made == at and kind == "kill after append":
                    os.kill(os.getpid(), signal.SIGKILL)
                return done

            return with_fault

        for name in ("append", "append_all"):
            setattr(SQLiteStorage, name, faulty(getattr(SQLiteStorage, name)))

    # Calls

    def _begun(self, policy: str, key: str, tag: str, number: int) -> None:
        self.outside.write("call", self._start, policy, key, f"{tag} {number}")
        self.point()

    def _done(self, policy: str, key: str, value: object) -> None:
        self.outside.write("done", self._start, policy, key, value)
        self.point()

    def _made(self, policy: str, outcome: Callable[[str], object]) -> Callable[..., Any]:
        """A function of the outside world that is called with a tag, a number and more."""

        def make(tag: str, number: int, *more: Any, idempotency_key: str = "") -> Any:
            key = idempotency_key or f"{policy} {number}"
            self._begun(policy, key, tag, number)
            for one in more:
                if isinstance(one, list):
                    one.append(number)
            if outcome(key) is not None:
                self.outside.write("raised", self._start, policy, key)
                self.point()
                raise ConnectionError(f"no network for {number}")
            self._done(policy, key, number)
            return number * 7 + 1

        async def make_async(tag: str, number: int, *more: Any, idempotency_key: str = "") -> Any:
            await asyncio.sleep(0)
            value = make(tag, number, *more, idempotency_key=idempotency_key)
            await asyncio.sleep(0)
            return value

        return make_async if self.awaited else make

    def _step(
        self, name: str, in_doubt: str, outcome: Callable[[str], object]
    ) -> Callable[..., Any]:
        made = self._made(in_doubt, outcome)
        if self._forgetful:
            return made
        return surehold.step(name=name, in_doubt=in_doubt)(made)  # type: ignore[call-overload,no-any-return]

    def names(self) -> dict[str, Any]:
        """The global names of the program."""
        call = self._step("call", "retry", lambda key: None)
        fail = self._step("fail", "retry", lambda key: key)
        flaky = self._step("flaky", "retry", lambda key: None if self._network.exists() else key)
        change = self._step("change", "retry", lambda key: None)
        pay = self._step("pay", "ask", lambda key: None)
        effect = self._made("ask", lambda key: None)

        def paid(tag: str, number: int) -> Any:
            if self._forgetful or number % 2:
                return pay(tag, number)
            if self.run is not None:
                return self.run.effect("effect", effect, tag, number)
            if self.awaited:
                return surehold.effect("effect", effect, tag, number)
            return pay(tag, number)

        def nested(tag: str, number: int) -> Any:
            first = call(tag, number * 100)
            return first + call(tag, number * 100 + 1)

        async def nested_async(tag: str, number: int) -> Any:
            return await call(tag, number * 100) + await call(tag, number * 100 + 1)

        inner = surehold.step(name="inner")(nested_async if self.awaited else nested)
        given = {
            "call": call,
            "fail": fail,
            "refused": self._refused,
            "flaky": flaky,
            "change": change,
            "pay": paid,
            "inner": inner,
            "wait": self._wait,
            "late": self._late,
            "dice": lambda tag, number: self._dice(call, tag, number),
        }
        watch = self._watched_async if self.awaited else self._watched
        watched = {name: watch(function) for name, function in given.items()}
        return {
            **watched,
            **(_awaited if self.awaited else _plain)(watched["call"]),
            "Held": Held,
            "asyncio": asyncio,
            "contextlib": contextlib,
            "surehold": surehold,
        }

    def _dice(self, call: Callable[..., Any], tag: str, number: int) -> Any:
        return call(tag, number, str(surehold.uuid4()), surehold.random())

    async def _refused(self, tag: str, number: int) -> None:
        """A failure that is not recorded."""
        await asyncio.sleep(0)
        raise ConnectionError(f"no network for {number}")

    def _wait(self, tag: str, number: int) -> Any:
        if self.waits_for_events:
            return surehold.wait_for(f"event{number}")
        return surehold.interrupt(f"event{number}?", key=f"event{number}")

    def _late(self, tag: str, number: int) -> Any:
        if self.waits_for_events:
            return surehold.wait_for(f"never{number}", timeout=0.01)
        return self._dice(lambda *given: _nothing(given), tag, number)

    def _note(self, tag: str, error: BaseException) -> None:
        if is_leaving(error):
            self.outside.write("left", self._start, "", "", tag)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(tag: str, number: int, *more: Any) -> Any:
            try:
                self.point()
                return function(tag, number, *more)
            except BaseException as error:
                self._note(tag, error)
                raise

        return watched

    def _watched_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def awaited(tag: str, made: Awaitable[Any]) -> Any:
            try:
                self.point()
                return await made
            except BaseException as error:
                self._note(tag, error)
                raise

        def watched(tag: str, number: int, *more: Any) -> Any:
            try:
                made = function(tag, number, *more)
            except BaseException as error:
                self._note(tag, error)
                raise
            return awaited(tag, made)

        return watched


async def _nothing(given: object) -> str:
    return "late"


def _plain(call: Callable[..., Any]) -> dict[str, Any]:
    @contextlib.contextmanager
    def scope(tag: str, number: int) -> Any:
        made = call(tag, number * 1000)
        try:
            yield made
        finally:
            call(tag, number * 1000 + 1)

    class Object:
        def __init__(self, tag: str, number: int) -> None:
            self.tag, self.number = tag, number

        def __enter__(self) -> Any:
            return call(self.tag, self.number * 1000)

        def __exit__(self, kind: object, error: object, trace: object) -> bool:
            call(self.tag, self.number * 1000 + 1)
            return False

    class Hiding(Object):
        def __exit__(self, kind: object, error: object, trace: object) -> bool:
            super().__exit__(kind, error, trace)
            return True

    return {"scope": scope, "Object": Object, "Hiding": Hiding}


def _awaited(call: Callable[..., Any]) -> dict[str, Any]:
    @contextlib.asynccontextmanager
    async def scope(tag: str, number: int) -> Any:
        made = await call(tag, number * 1000)
        try:
            yield made
        finally:
            await call(tag, number * 1000 + 1)

    class Object:
        def __init__(self, tag: str, number: int) -> None:
            self.tag, self.number = tag, number

        async def __aenter__(self) -> Any:
            return await call(self.tag, self.number * 1000)

        async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
            await call(self.tag, self.number * 1000 + 1)
            return False

    class Hiding(Object):
        async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
            await super().__aexit__(kind, error, trace)
            return True

    return {"scope": scope, "Object": Object, "Hiding": Hiding}
