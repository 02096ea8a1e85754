"""Hooks: user code that observes events and may check or change what is saved."""

from __future__ import annotations

import difflib
import inspect
import logging
import math
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from time import perf_counter, time
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec

from surehold.core.driving import drive, drive_async
from surehold.engine.hooks.calls import Call, CallOutcome, Calls
from surehold.engine.hooks.events import (
    MOST_SILENT_CALLS,
    Handler,
    Hook,
    HookContext,
    HookEvent,
    HookPriority,
    HookResult,
    Verdict,
    judge,
    replacement,
)
from surehold.errors import UsageError

logger = logging.getLogger("surehold.hooks")

OnError: TypeAlias = Callable[[BaseException, HookContext], object]


class _Handler:
    """A registered callable or object, in however many events."""

    def __init__(self, given: Handler | OnError, name: str) -> None:
        function: Any = getattr(given, "handle", given)
        self.given = given
        self.name = name
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )
        self.required = getattr(given, "required", False) is True
        self.silent = 0
        self.told: set[str] = set()
        self.calls = self.successes = self.failures = self.timeouts = self.vetoes = 0
        self.total_ms = self.max_ms = 0.0

    def count(self, result: HookResult, kind: str) -> None:
        self.calls += 1
        self.failures += bool(kind)
        self.timeouts += kind == "timeout"
        self.vetoes += result.veto and not kind
        self.successes += not (kind or result.veto)
        self.total_ms += result.duration_ms
        self.max_ms = max(self.max_ms, result.duration_ms)

    def stats(self) -> dict[str, float]:
        return {
            "call_count": self.calls,
            "success_count": self.successes,
            "failure_count": self.failures,
            "timeout_count": self.timeouts,
            "veto_count": self.vetoes,
            "total_duration_ms": self.total_ms,
            "avg_duration_ms": self.total_ms / self.calls if self.calls else 0.0,
            "max_duration_ms": self.max_ms,
        }


class _Registration(msgspec.Struct, frozen=True):
    handler: _Handler
    priority: HookPriority
    timeout: float | None


class HookManager:
    """Knows the handlers of every event and runs them, in order, within their time.

    Whatever a handler does short of a veto (it raises, hangs, fails, ends its thread) is counted,
    logged once per handler and kind of failure (`surehold.hooks`), and changes nothing. A handler
    that gives no answer eight times in a row is not called again unless it is `required` or
    registered anew. *on_error* is called with each such error and the context. An async handler
    that blocks without awaiting cannot be interrupted when it runs on the caller's own event loop.

    >>> manager = HookManager()
    >>> manager.register("post_checkpoint_save", lambda context: print(context.data["step_number"]))
    >>> [result.success for result in manager.fire("post_checkpoint_save", "a", {"step_number": 3})]
    3
    [True]
    """

    def __init__(self, timeout: float = 5.0, on_error: OnError | None = None) -> None:
        self._timeout = _read_timeout(timeout)
        self._lock = threading.Lock()
        self._registered: dict[HookEvent, tuple[_Registration, ...]] = {}
        self._handlers: list[_Handler] = []
        self._calls = Calls()
        self._on_error = None if on_error is None else _Handler(on_error, "on_error")

    def register(
        self,
        event: HookEvent | str,
        handler: Handler,
        priority: HookPriority | int = HookPriority.NORMAL,
        timeout: float | None = None,
    ) -> None:
        """Call *handler* (a function, async function or `Hook`) when *event* is fired."""
        self._register([_read_event(event)], handler, priority, timeout)

    def register_hook(self, hook: Hook, priority: HookPriority | int | None = None) -> None:
        """Register *hook* for all of its `events`."""
        events = [_read_event(event) for event in getattr(hook, "events", ())]
        if not events:
            raise UsageError(
                f"{type(hook).__name__} names no events", hint="give it an events attribute"
            )
        if priority is None:
            priority = getattr(hook, "priority", HookPriority.NORMAL)
        self._register(events, hook, priority, None)

    def _register(
        self, events: list[HookEvent], given: Handler, priority: int, timeout: float | None
    ) -> None:
        if isinstance(given, type) or not callable(getattr(given, "handle", given)):
            raise UsageError(
                f"{given!r} cannot handle events",
                hint="give a function, or an object with a handle(context) method",
            )
        try:
            level = HookPriority(priority)
        except ValueError:
            raise UsageError(f"priority is {priority!r}", hint="use a HookPriority") from None
        if timeout is not None:
            _read_timeout(timeout)
        with self._lock:
            registration = _Registration(self._handler_of(given), level, timeout)
            for event in events:
                all_of_them = (*self._registered.get(event, ()), registration)
                self._registered[event] = tuple(sorted(all_of_them, key=lambda r: r.priority))

    def _handler_of(self, given: Handler) -> _Handler:
        for handler in self._handlers:
            if _is_same(handler.given, given):
                return handler
        stem = name = _name_of(given)
        number = 1
        while any(handler.name == name for handler in self._handlers):
            number += 1
            name = f"{stem}#{number}"
        made = _Handler(given, name)
        self._handlers.append(made)
        return made

    def unregister(self, event: HookEvent | str, handler: Handler | None = None) -> int:
        """Take *handler*, or every handler, off *event*; return the number removed."""
        event = _read_event(event)
        with self._lock:
            before = self._registered.pop(event, ())
            kept = tuple(
                r for r in before if handler is not None and not _is_same(r.handler.given, handler)
            )
            if kept:
                self._registered[event] = kept
            used = {r.handler for rs in self._registered.values() for r in rs}
            self._handlers = [h for h in self._handlers if h in used]
        return len(before) - len(kept)

    def has(self, event: HookEvent) -> bool:
        """Return True if a handler is registered for *event*."""
        return event in self._registered

    @property
    def hooks(self) -> list[object]:
        """The objects whose functions or methods are registered."""
        with self._lock:
            return [getattr(one.given, "__self__", one.given) for one in self._handlers]

    def registered_hook_names(self) -> list[str]:
        """The names of all registered handlers, sorted."""
        with self._lock:
            return sorted({r.handler.name for rs in self._registered.values() for r in rs})

    def get_stats(self) -> dict[str, dict[str, float]]:
        """For each handler, by name, how often it was called and how that went.

        Every call is a success, a failure or a veto; timeouts are among the failures.
        """
        with self._lock:
            return {handler.name: handler.stats() for handler in self._handlers}

    def fire(
        self,
        event: HookEvent | str,
        agent_id: str = "",
        data: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        trace_id: str | None = None,
    ) -> list[HookResult]:
        """Call the handlers of *event*, wait for them, and return what each answered.

        *timeout* is for handlers that were registered without one. A veto ends the firing; a
        replaced state is what the handlers after it see.
        """
        steps = self._steps(event, agent_id, data, timeout, metadata, trace_id)
        return drive(steps, self._calls.make)

    async def trigger(
        self,
        event: HookEvent | str,
        agent_id: str = "",
        data: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        trace_id: str | None = None,
    ) -> list[HookResult]:
        """The same as `fire`, awaited; async handlers run on the caller's event loop."""
        steps = self._steps(event, agent_id, data, timeout, metadata, trace_id)
        return await drive_async(steps, self._calls.make_async)

    def _steps(
        self,
        event: HookEvent | str,
        agent_id: str,
        data: Mapping[str, Any] | None,
        timeout: float | None,
        metadata: Mapping[str, Any] | None,
        trace_id: str | None,
    ) -> Generator[Call, CallOutcome, list[HookResult]]:
        """Yields the calls to make and is sent their outcomes, however they were made."""
        results: list[HookResult] = []
        event = _read_event(event)
        if event not in self._registered:
            return results
        data = dict(data or {})
        run_id = str(data.get("run_id", ""))
        trace_id = trace_id or uuid4().hex
        limit = self._timeout if timeout is None else _read_timeout(timeout)
        for registration in self._registered.get(event, ()):
            context = HookContext(
                event, agent_id, run_id, time(), dict(data), dict(metadata or {}), trace_id
            )
            handler = registration.handler
            verdict = yield from self._call(
                handler, context, registration.timeout or limit, data.get("state")
            )
            if verdict.kind:
                yield from self._report(handler, verdict, context)
            results.append(verdict.result)
            if verdict.result.veto:
                break
            if event.is_pre and "state" in data:
                data["state"] = replacement(verdict.result, data["state"])
        return results

    def _call(
        self, handler: _Handler, context: HookContext, timeout: float, state: object
    ) -> Generator[Call, CallOutcome, Verdict]:
        started = perf_counter()
        outcome = yield from self._attempt(handler, (context,), timeout)
        verdict = judge(outcome, context.event_type, timeout, state)
        refuses = bool(verdict.kind) and handler.required and context.event_type.is_pre
        result = msgspec.structs.replace(
            verdict.result,
            hook=handler.name,
            duration_ms=(perf_counter() - started) * 1000,
            veto=verdict.result.veto or refuses,
        )
        with self._lock:
            handler.count(result, verdict.kind)
        return Verdict(result, verdict.kind, verdict.error)

    def _attempt(
        self, handler: _Handler, args: tuple[Any, ...], timeout: float
    ) -> Generator[Call, CallOutcome, CallOutcome | None]:
        """Call *handler* unless it is given up, which gives None."""
        if handler.silent >= MOST_SILENT_CALLS and not handler.required:
            return None
        outcome = yield Call(handler.function, args, handler.is_async, timeout)
        with self._lock:
            handler.silent = handler.silent + 1 if outcome.abandoned else 0
        return outcome

    def _report(
        self, handler: _Handler, verdict: Verdict, context: HookContext
    ) -> Generator[Call, CallOutcome, None]:
        self._log(handler, verdict, context.event_type)
        listener = self._on_error
        if listener is None:
            return
        error = verdict.error or RuntimeError(verdict.result.error)
        outcome = yield from self._attempt(listener, (error, context), self._timeout)
        if outcome is None or outcome.abandoned or outcome.error is not None:
            self._log(
                listener, judge(outcome, context.event_type, self._timeout), context.event_type
            )

    def _log(self, handler: _Handler, verdict: Verdict, event: HookEvent) -> None:
        with self._lock:
            if verdict.kind in handler.told:
                return
            handler.told.add(verdict.kind)
        trace = ""
        what = verdict.result.error
        if verdict.kind == "raised" and verdict.error is not None:
            # An exception's message may quote the state, so only its class and place are logged.
            what = f"raised {type(verdict.error).__name__}"
            trace = "\n" + "".join(traceback.format_tb(verdict.error.__traceback__)).rstrip()
        logger.warning(
            "hook %s on %s: %s; from now on this is counted and not logged%s",
            handler.name,
            event,
            what,
            trace,
        )


def _read_event(event: HookEvent | str) -> HookEvent:
    if type(event) is HookEvent:
        return event
    try:
        return HookEvent(event.lower())
    except (ValueError, AttributeError):
        near = difflib.get_close_matches(str(event).lower(), list(HookEvent), n=1, cutoff=0)
        raise UsageError(f"there is no event {event!r}", hint=f"did you mean {near[0]}?") from None


def _read_timeout(timeout: Any) -> float:
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise UsageError(f"timeout is {timeout!r}", hint="give a number of seconds above 0")
    return timeout


def _name_of(given: Handler) -> str:
    name = getattr(given, "name", None)
    if isinstance(name, str) and name:
        return name
    qualified: str = getattr(given, "__qualname__", type(given).__qualname__)
    return qualified.rpartition("<locals>.")[2]


def _is_same(one: object, other: object) -> bool:
    # Each look at a method makes a new object; those of one object and function are equal.
    return one is other or (inspect.ismethod(one) and inspect.ismethod(other) and one == other)
