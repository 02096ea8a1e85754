"""Effects: calls to the outside world whose outcome the journal keeps.

What an effect does is written once, in `EffectCall.actions`: a generator that yields what is to
be written, called or waited for. A blocking and an async driver carry it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import msgspec

from surehold.core.driving import drive, drive_async
from surehold.core.policy import RetryPolicy
from surehold.core.records import Effect
from surehold.core.values import can_change, decode, encode, encode_tree
from surehold.engine.commit import call_beside
from surehold.engine.hooks import HookManager, RunSpans
from surehold.engine.runs.effect_log import permitted
from surehold.engine.runs.effects.awaiting import AwaitsAll, to_await
from surehold.engine.runs.effects.called import Called, is_short
from surehold.engine.runs.effects.error_text import describe as error_line
from surehold.engine.runs.effects.error_text import failure_text
from surehold.engine.runs.effects.gate import passing, passing_now
from surehold.engine.runs.effects.heartbeats import TimedOut, attempt, attempt_now
from surehold.engine.runs.effects.recorded_error import read_error, write_error
from surehold.engine.runs.positions import (
    BRANCH,
    CallContext,
    check_awaited,
    idempotency_key,
    recording_context,
)
from surehold.errors import (
    Drained,
    EncodeError,
    InDoubtError,
    Interrupted,
    ShapeError,
    Signal,
    SureholdError,
    UsageError,
)

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun

T = TypeVar("T")

InDoubt = Literal["retry", "probe", "ask", "fail"]
_POLICIES = ("retry", "probe", "ask", "fail")

Usage = Callable[[Any], Mapping[str, Any]]
"""Reads ``{"tokens": ..., "dollars": ...}`` from what an effect returned."""


@overload
def effect(
    name: str,
    fn: Callable[..., Awaitable[T]],
    *args: Any,
    in_doubt: InDoubt | None = None,
    key: str | None = None,
    probe: Callable[[str], Any] | None = None,
    usage: Usage | None = None,
    record_arguments: bool | None = None,
    outside_ok: bool = False,
    **kwargs: Any,
) -> Coroutine[Any, Any, T]: ...
@overload
def effect(
    name: str,
    fn: Callable[..., T],
    *args: Any,
    in_doubt: InDoubt | None = None,
    key: str | None = None,
    probe: Callable[[str], Any] | None = None,
    usage: Usage | None = None,
    record_arguments: bool | None = None,
    outside_ok: bool = False,
    **kwargs: Any,
) -> Coroutine[Any, Any, T]: ...
def effect(
    name: str,
    fn: Callable[..., Any],
    *args: Any,
    in_doubt: InDoubt | None = None,
    key: str | None = None,
    probe: Callable[[str], Any] | None = None,
    usage: Usage | None = None,
    record_arguments: bool | None = None,
    outside_ok: bool = False,
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]:
    """Call *fn* inside a run, and keep what it returns in the run's journal.

    When the run is resumed and comes here again, the recorded outcome is returned, or the
    recorded exception raised, and *fn* is not called. If the process died between the call and
    the record of its outcome, the effect is in doubt, and *in_doubt* says what to do:

    - ``ask`` (the default, and why this is no `surehold.step`): the run waits until
      `surehold.answer` says what happened.
    - ``retry`` (the default of a step): it is called again with the same idempotency key. For
      what is safe to repeat; it costs one write less.
    - ``probe``: *probe* is called with the idempotency key and returns the outcome; None says
      that the call did not happen, and *fn* is called now.
    - ``fail``: `InDoubtError`.

    If *fn* takes an argument named ``idempotency_key`` and is not given one, it gets the key of
    this position in the run. A position is the scope, the step, the name, and how often the name
    came before in the step, or *key* instead of that count. Other arguments at the same position
    are a `ShapeError`. An exception of *fn* is an outcome too; another attempt with the same
    arguments in the same step has the same idempotency key, and when a failed step is resumed the
    call is made again. If *fn* itself cannot tell whether it happened, it raises `InDoubtError`.

    The arguments are kept in a short form without secrets, for whoever is asked about the call or
    looks at it later, unless *in_doubt* is ``retry``; *record_arguments* says otherwise.

    Inside ``async with surehold.run(...)``, a workflow, a node or a tool it is recorded. Outside a
    run, *fn* is just called, with one warning unless *outside_ok*; in a graph that takes no
    checkpoints it is just called. In plain code, where nothing can be awaited, it is a
    `UsageError`: there `Run.effect` and `surehold.step` are the ways.
    """
    asked = check_policy(name, in_doubt, probe)
    if not callable(fn):
        raise UsageError(f"{fn!r} cannot be called", hint="give a function, then its arguments")
    check_awaited(f"effect({name!r})", 'call a @surehold.step(in_doubt="ask"), or run.effect(...)')
    policy = CallPolicy(
        name=name,
        in_doubt=asked,
        probe=probe,
        usage=usage,
        record_arguments=record_arguments,
    )
    made = _effect(policy, key, Called(fn, args, kwargs), outside_ok=outside_ok)
    return to_await(f"effect({name!r})", made)


async def _effect(
    policy: CallPolicy,
    key: str | None,
    called: Called,
    *,
    wait: bool = True,
    outside_ok: bool = True,
) -> Any:
    context = recording_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        if context is None and not outside_ok:
            _warn_outside(policy.name)
        return await _unrecorded(policy, called)
    call = EffectCall(context, run, policy)
    return await perform(call, key, called, wait=wait)


async def effect_by(
    policy: CallPolicy, fn: Callable[..., Awaitable[T] | T], *args: Any, **kwargs: Any
) -> T:
    """`effect` by a *policy*.

    With ``in_doubt="retry"`` it does not wait until the outcome is durable: that it is before
    anything that the run writes later. So no effect begins that depends on an outcome which might
    be lost; a crash before that calls *fn* again.
    """
    wait = policy.in_doubt != "retry"
    called = Called(fn, args, kwargs)
    return await _effect(policy, None, called, wait=wait)  # type: ignore[no-any-return]


async def _unrecorded(policy: CallPolicy, called: Called) -> Any:
    """Make the call by the *policy* where nothing is recorded."""
    attempts, key, failures = policy.attempts, str(uuid.uuid4()), 0
    began = time.monotonic()
    while True:
        try:
            return await _attempt(called, key, attempts)
        except TimedOut:
            error: Exception = TimeoutError(f"{policy.name} {attempts.too_long}")
        except Exception as raised:
            error = raised
        pause = attempts.pause_after(failures, error, time.monotonic() - began)
        if pause is None:
            value = NotImplemented if policy.settle is None else policy.settle(error)
            if value is NotImplemented:
                raise error
            return value
        failures += 1
        await asyncio.sleep(pause)


class _Write(msgspec.Struct, frozen=True):
    entry: Effect
    outcome: bool = False


class _Call(msgspec.Struct, frozen=True):
    key: str


class _Probe(msgspec.Struct, frozen=True):
    key: str


class _Pause(msgspec.Struct, frozen=True):
    seconds: float


class _Flush(msgspec.Struct, frozen=True):
    pass


_FLUSH = _Flush()
_Action: TypeAlias = _Write | _Call | _Probe | _Pause | _Flush
_Actions = Generator[_Action, Any, Any]


class _NotBegun(Exception):
    """The function was not called: *error* concerns the run, and is no outcome."""

    def __init__(self, error: SureholdError) -> None:
        super().__init__(error)
        self.error = error


_LONGEST_REST = 0.2
"""Seconds after which a call that is finished looks whether it is broken off."""


class CallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The handling of a call's failures, timeouts and unknown outcome."""

    name: str
    in_doubt: InDoubt = "ask"
    probe: Callable[[str], Any] | None = None
    usage: Usage | None = None
    record_arguments: bool | None = None
    """Whether the arguments are kept for people to read; None: unless the call may be repeated."""
    attempts: RetryPolicy = RetryPolicy()
    settle: Callable[[Exception], Any] | None = None
    """Makes the exception of the last attempt an outcome that is returned; `NotImplemented` if
    it is to be raised."""
    write: Callable[[Any], Any] | None = None
    """Makes an outcome that cannot be stored one that can."""
    read: Callable[[Any], Any] | None = None
    """Makes the recorded outcome what the function returned."""
    kind: Literal["effect", "step", "model", "tool"] = "effect"
    """What is called, for the trace; a call with *usage* is of a model."""


REPLAY_ONLY: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "replay_only", default=None
)
"""A list that takes the id of the first live call, before which the run is then left."""


class EffectCall:
    """One call at its position in the run."""

    def __init__(self, context: CallContext, run: OpenRun, policy: CallPolicy) -> None:
        self.ledger = run.ledger
        self.policy = policy
        self.context = context
        self.run = run
        self._key: str | None = None
        # A parallel item that continues in the same task must not move the notes of this one.
        self.spot = context.spot
        self._located: tuple[str, Effect | None, str] | None = None
        self._digest: str | None = None
        self.kept = b""
        """The recorded text of what this call returned."""
        self.cancelled: asyncio.CancelledError | None = None
        """The cancellation that waits until the outcome is written."""
        self._inner: CallContext | None = None
        self._entry: Effect | None = None
        """The entry of the call with its outcome, once it has ended here."""
        self.is_unit = True
        """False for a call whose own calls are the units that a stop lets finish."""

    @property
    def new(self) -> bool:
        """True if the journal holds no outcome of the call."""
        return self._located is None or self._located[1] is None or not self._located[1].done

    def begin(self) -> None:
        """Raise `_NotBegun` if the lease ended while the call waited for its turn."""
        try:
            self.run.check_lease()
        except SureholdError as error:
            raise _NotBegun(error) from error

    def check_left(self) -> None:
        """Raise the signal with which a call inside left the run, if the function hid it."""
        if self._inner is not None:
            self._inner.check_left()

    def unit(self) -> AbstractContextManager[object]:
        """A block that a first signal does not break off."""
        stop = self.run.call_stop
        if stop is None or not self.is_unit:
            return contextlib.nullcontext()
        return stop.unit(self._located[0] if self._located is not None else self.policy.name)

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Await *work*; a cancellation while the run is left waits until that is recorded.

        So does the cancellation of an effect that lost a race. A second signal waits for nothing,
        and neither does a cancellation by the program, as of a timeout around the call.
        """
        stop, branch = self.run.call_stop, BRANCH.get()
        if stop is None and branch is None:
            return await work
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError as error:
            asks = self.policy.in_doubt in ("ask", "fail")
            while (
                not task.done()
                and (stop is None or not stop.broken_off)
                and (
                    (stop is not None and stop.reason is not None)
                    or self.run.leaving.signals
                    or (asks and branch is not None and branch.lost)
                )
            ):
                self.cancelled = error
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task], timeout=_LONGEST_REST)
            while not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if task.cancelled():
                self.cancelled = None
                raise
            return task.result()

    def span(self, called: Called) -> AbstractContextManager[object]:
        """A span around a call that is made, if the run is traced."""
        spans = self.run.spans
        return contextlib.nullcontext() if spans is None else self._span(spans, called)

    @contextlib.contextmanager
    def _span(self, spans: RunSpans, called: Called) -> Iterator[None]:
        assert self._located is not None
        if spans.parent is None:
            spans.begun("", "" if self.run.door is None else self.run.door.kind)
        kind = "model" if self.policy.usage is not None else self.policy.kind
        inputs = called.inputs(self.run.hook_manager) if spans.shows_content else ""
        with spans.call(kind, self.policy.name, self._located[0], inputs) as span:
            yield
            ended = self._entry
            if ended is not None:
                facts = ended.model, ended.tokens, ended.output, ended.dollars
                span.ended(*facts, bytes(ended.value))

    def rest(self, seconds: float) -> Iterable[float]:
        """The slices of a pause between two attempts."""
        stop = self.run.call_stop
        return (seconds,) if stop is None or not self.context.repeats else stop.rest(seconds)

    @property
    def place(self) -> str:
        """The id of the call, once it has taken its position."""
        assert self._located is not None
        return self._located[0]

    def body(self, awaited: bool | None) -> AwaitsAll:
        """A block for the function of the call, whose own calls are inside this one."""
        assert self._located is not None
        inner = self._inner = self.context.inside(self._located[0], awaited)
        inner.repeats = self.context.repeats and self.policy.in_doubt in ("retry", "probe")
        return inner.active()

    def locate(self, key: str | None, digest: str) -> None:
        """Take the next position; `recorded` does so if this was not called."""
        self._key, self._digest = key, digest
        self._located = self.context.locate(self.policy.name, key, digest)
        if self.context.calls_are_steps:
            self.spot = self.context.spot

    def recorded(self, key: str | None, called: Called) -> tuple[str, Effect | None]:
        """Take the next position; its entry, if that has an outcome for these arguments.

        Returns also the digest of the arguments, as of when the call took its position.
        """
        digest = self._digest if self._digest is not None else called.digest()
        if self._located is None:
            self.locate(key, digest)
        known = self._located[1] if self._located is not None else None
        fits = known is not None and known.done and known.args == digest
        return digest, known if fits else None

    def reuse(self, known: Effect) -> Any:
        """Return the recorded outcome, or raise it."""
        if self.context.emit is not None:
            self._say("effect.reused", known)
        return self._outcome(known)

    def locate_at(self, place: str) -> None:
        """Take that position."""
        known = self.ledger.find(Effect, place)
        self._located = place, known, idempotency_key(self.run, place)
        if self.context.calls_are_steps:
            self.spot = self.context.spot

    def actions(self, digest: str, called: Called) -> _Actions:
        """The actions to perform for the call at its position, up to its outcome."""
        assert self._located is not None
        place, known, idempotency_key = self._located
        if known is None or not known.done:
            self.context.check_new(place)
        if known is None:
            entry = Effect(
                id=place,
                name=self.policy.name,
                key=idempotency_key,
                args=digest,
                policy=self.policy.in_doubt,
                began=_now(),
            )
            may_repeat, keeps = self.policy.in_doubt == "retry", self.policy.record_arguments
            if keeps or (keeps is None and not may_repeat):
                entry.inputs = called.inputs(self.run.hook_manager)
            return self._made(entry) if may_repeat else self._begun(entry)
        if known.args != digest:
            other = ShapeError(
                f"effect {known.id} of run {self.run.run_id!r} is called with other"
                " arguments than it was before",
                hint="what decides on the arguments (time, chance, a model) must be an effect of"
                " its own; to do something else, fork the run" + self.context.hint_on_order,
                run_id=self.run.run_id,
                effect=known.id,
            )
            raise self.context.leave(other)
        return self._continued(known)

    def _leave_before(self, entry: Effect) -> None:
        """Leave the run here, because only its recorded calls are to be replayed."""
        met = REPLAY_ONLY.get()
        assert met is not None
        met.append(entry.id)
        raise self.context.leave(Drained(f"the next call, {entry.id}, is live"))

    def _begun(self, entry: Effect) -> _Actions:
        if REPLAY_ONLY.get() is not None:
            self._leave_before(entry)
        yield _Write(entry)
        return (yield from self._made(entry))

    def _continued(self, known: Effect) -> _Actions:
        if known.done:
            return self.reuse(known)
        if known.repeat:
            entry = msgspec.structs.replace(known, repeat=False, began=_now())
            if self.policy.in_doubt != "retry":
                yield _Write(entry)  # the permission is for this one attempt
            return (yield from self._made(entry))
        self._say("effect.in_doubt", known)
        if self.policy.in_doubt == "retry":
            return (yield from self._made(known))
        return (yield from self._found_out(known))

    def _found_out(self, known: Effect) -> _Actions:
        """Follow the policy on an unknown outcome; call only if it did not happen."""
        run_id = self.run.run_id
        if self.policy.in_doubt == "probe":
            found = yield _Probe(known.key)
            if found is None:
                return (yield from self._made(known))
            ended = self._ended(known, found, 0.0)
            yield _Write(ended, outcome=True)
            self._say("effect.complete", ended)
            return self._value_of(ended, found)
        if known.policy != self.policy.in_doubt:  # the code changed, and now a person is needed
            yield _Write(msgspec.structs.replace(known, policy=self.policy.in_doubt))
        if self.policy.in_doubt == "ask":
            what = f"it is not known whether {known.id} happened"
            hint = f"surehold pending {run_id} says how to answer"
            waits = Interrupted(f"run {run_id!r} waits: {what}", hint=hint, run_id=run_id)
            raise self.context.leave(waits)
        raise InDoubtError(
            f"effect {known.id} of run {run_id!r} began, and its outcome is not known",
            hint=f"find out, then surehold.answer({run_id!r}, {known.id!r}, outcome)",
            run_id=run_id,
            effect=known.id,
            key=known.key,
        )

    def _made(self, entry: Effect) -> _Actions:
        if REPLAY_ONLY.get() is not None:
            self._leave_before(entry)
        if self.policy.in_doubt == "retry":
            yield _FLUSH  # no intent is written, and the call may depend on what was recorded
        if self.context.emit is not None:
            self._say("effect.start", entry)
        started = time.perf_counter()
        while True:
            try:
                value = yield _Call(entry.key)
                break
            except InDoubtError:
                raise
            except _NotBegun as late:
                raise late.error from late.error.__cause__
            except TimedOut as late:
                if self.policy.in_doubt in ("ask", "fail"):
                    return (yield from self._found_out(entry))
                found = (yield _Probe(entry.key)) if self.policy.in_doubt == "probe" else None
                if found is not None:
                    value = found
                    break
                late_by = self.policy.attempts.too_long
                error: Exception = TimeoutError(f"{entry.name} {late_by}")
                error.__cause__ = late
            except StopIteration as stopped:  # no generator can raise it, so none is recorded
                error = RuntimeError(f"{entry.name} raised StopIteration")
                error.__cause__ = stopped
            except Exception as raised:
                error = raised
            elapsed = _seconds_since(entry.since or entry.began)
            pause = self.policy.attempts.pause_after(entry.failures, error, elapsed)
            if pause is None:
                settle = self.policy.settle
                value = NotImplemented if settle is None else settle(error)
                if value is not NotImplemented:
                    break
                yield from self._failed(entry, error, started)
                raise error
            entry = yield from self._try_again(entry, error, pause)
        try:
            ended = self._ended(entry, value, time.perf_counter() - started)
        except Exception as unstorable:  # the call was made: whether it happened is known
            yield from self._failed(entry, unstorable, started)
            raise
        self.run.manager.face.metrics.stepped(ended.seconds or 0.0)
        yield _Write(ended, outcome=True)
        if self.context.emit is not None:
            self._say("effect.complete", ended)
        return self._value_of(ended, value)

    def _try_again(self, entry: Effect, error: Exception, pause: float) -> _Actions:
        """Record a failed attempt, then wait: a crash meanwhile loses no count."""
        for id in getattr(error, "__surehold_effects__", ()):
            inner = self.ledger.find(Effect, id)
            if inner is not None:  # a call inside this one is made again too
                yield _Write(permitted(inner))
        since, failures = entry.since or entry.began, entry.failures + 1
        entry = msgspec.structs.replace(entry, since=since, failures=failures, repeat=True)
        yield _Write(entry)
        self._say("effect.retry", entry, error=type(error).__name__, wait=pause)
        yield _Pause(pause)
        entry = msgspec.structs.replace(entry, repeat=False, began=_now())
        if self.policy.in_doubt != "retry":
            yield _Write(entry)
        return entry

    def _failed(self, entry: Effect, error: Exception, started: float) -> _Actions:
        hooks = self.run.hook_manager
        kind, text = type(error).__name__, _redacted(error_line(error), hooks)
        ended = msgspec.structs.replace(
            entry,
            done=True,
            error=(kind, text),
            raised=write_error(error, lambda text: _redacted(f"{kind}: {text}", hooks)),
            seconds=time.perf_counter() - started,
        )
        self.context.ended(ended, self._key, failed=True)
        self.run.manager.face.metrics.stepped(ended.seconds or 0.0, failed=True)
        yield _Write(ended, outcome=True)
        _came_from(error, ended.id)
        self.run.leaving.failed(ended.id)
        self._say("effect.complete", ended)

    def _ended(self, entry: Effect, value: Any, seconds: float) -> Effect:
        """*entry* with its outcome."""
        spent: Mapping[str, Any] = {}
        if self.policy.usage is not None:
            spent = self.policy.usage(value)
        text = self._encoded(entry, value)
        ended = msgspec.structs.replace(
            entry, done=True, repeat=False, value=msgspec.Raw(text), seconds=seconds
        )
        if spent:
            ended.tokens = int(spent.get("tokens", 0))
            ended.dollars = float(spent.get("dollars", 0.0))
            ended.model = str(spent.get("model", ""))
            ended.output = int(spent.get("output", 0))
        if self.context.failed:
            self.context.ended(ended, self._key, failed=False)
        self._entry = ended
        return ended

    def _encoded(self, entry: Effect, value: Any) -> bytes:
        try:
            return encode_tree(value) if is_short(value) else encode(value)
        except EncodeError as error:
            if self.policy.write is not None:
                with contextlib.suppress(EncodeError):
                    return encode(self.policy.write(value))
            run_id = self.run.run_id
            where = f"{entry.id} of run {run_id!r} returned what cannot be stored"
            raise error.within(where, run_id=run_id, effect=entry.id) from error

    def _outcome(self, known: Effect) -> Any:
        self.context.ended(known, self._key, failed=known.error is not None)
        if known.error is None:
            value = decode(bytes(known.value))
            return value if self.policy.read is None else self.policy.read(value)
        error = read_error(*known.error, known.raised, f"effect {known.id}")
        _came_from(error, known.id)
        self.run.leaving.failed(known.id)
        raise error

    def _value_of(self, ended: Effect, value: Any) -> Any:
        """*value*, just returned, as a replay returns it."""
        self.kept = bytes(ended.value)
        value = decode(self.kept) if can_change(value) else value
        return value if self.policy.read is None else self.policy.read(value)

    def _say(self, kind: str, entry: Effect, **facts: Any) -> None:
        if self.context.emit is not None:
            data: dict[str, Any] = {"effect": entry.id, "name": entry.name, "node": self.spot.node}
            data |= facts
            if kind in ("effect.complete", "effect.reused"):
                data |= {
                    "error": entry.error[0] if entry.error else None,
                    "seconds": entry.seconds,
                    "tokens": entry.tokens,
                    "dollars": entry.dollars,
                }
            self.context.emit(kind, data)


async def perform(call: EffectCall, key: str | None, called: Called, *, wait: bool = True) -> Any:
    """Carry *call* out on the event loop; without *wait*, write its outcome behind it."""

    async def do(action: _Action) -> Any:
        if type(action) is _Write:
            durable = wait or not action.outcome
            await call.ledger.write(action.entry, call.spot, wait=durable)
        elif type(action) is _Call:
            with call.body(inspect.iscoroutinefunction(called.fn) or None):
                try:
                    return await _attempt(called, action.key, call.policy.attempts, call)
                finally:
                    call.check_left()
        elif type(action) is _Probe:
            assert call.policy.probe is not None
            said = call.policy.probe(action.key)
            return await said if inspect.isawaitable(said) else said
        elif type(action) is _Flush:
            await call.ledger.flush()
        else:
            assert type(action) is _Pause
            for seconds in call.rest(action.seconds):
                await asyncio.sleep(seconds)
        return None

    call.context.check()
    digest, known = call.recorded(key, called)
    if known is not None:
        return call.reuse(known)
    actions = call.actions(digest, called)
    try:
        with call.unit(), call.span(called):
            value = await call.finished(drive_async(actions, do))
    except Exception as error:
        for id in calls_behind(error):
            call.run.leaving.failed(id)  # in this task, whichever made the call
        call.context.check_leaving()  # the failure is recorded, and the next start handles it
        raise
    except Signal as left:
        call.context.leave(left)
        raise
    finally:
        if call.cancelled is not None:
            raise call.cancelled
    called.warn_if_changed(call.policy.name, call.kept)
    call.context.check_leaving()
    return value


def perform_now(call: EffectCall, key: str | None, called: Called) -> Any:
    """Carry *call* of a plain function out on this thread, until it is durable."""
    call.context.check()
    digest, known = call.recorded(key, called)
    if known is not None:
        return call.reuse(known)

    def do(action: _Action) -> Any:
        if type(action) is _Write:
            call.ledger.write_now(action.entry, call.spot)
        elif type(action) is _Call:
            with call.body(False):
                try:
                    return _attempt_now(called, action.key, call.policy.attempts, call)
                finally:
                    call.check_left()
        elif type(action) is _Probe:
            assert call.policy.probe is not None
            return call.policy.probe(action.key)
        elif type(action) is _Flush:
            call.ledger.flush_now()
        else:
            assert type(action) is _Pause
            for seconds in call.rest(action.seconds):
                time.sleep(seconds)
        return None

    actions = call.actions(digest, called)
    try:
        with call.unit(), call.span(called):
            value = drive(actions, do)
    except Exception:
        call.context.check_leaving()
        raise
    except Signal as left:
        call.context.leave(left)
        raise
    called.warn_if_changed(call.policy.name, call.kept)
    call.context.check_leaving()
    return value


def check_policy(
    name: str, in_doubt: str | None, probe: object, *, default: InDoubt = "ask"
) -> InDoubt:
    """The policy of an effect, or a `UsageError`; *default* if neither is given."""
    if type(name) is not str or not name:
        raise UsageError(f"an effect's name is {name!r}", hint="give a text, then the function")
    policy = in_doubt or ("probe" if probe is not None else default)
    if policy not in _POLICIES:
        raise UsageError(f"in_doubt is {policy!r}", hint=f"one of {', '.join(_POLICIES)}")
    if (policy == "probe") != (probe is not None):
        raise UsageError(
            f"effect {name!r} has in_doubt={policy!r} and {'no' if probe is None else 'a'} probe",
            hint="give probe=, a function of the idempotency key, with in_doubt='probe'",
        )
    return policy  # type: ignore[return-value]


_warned: set[str] = set()


def _warn_outside(name: str) -> None:
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"effect {name!r} is called outside a run, and nothing of it is recorded"
            " (open a run, or give outside_ok=True)",
            RuntimeWarning,
            stacklevel=3,
        )


async def _attempt(
    called: Called, key: str, attempts: RetryPolicy, call: EffectCall | None = None
) -> Any:
    if attempts.concurrency is None:
        return await attempt(call, attempts, lambda: _call(called, key, call))
    async with passing(attempts):
        return await attempt(call, attempts, lambda: _call(called, key, call))


async def _call(called: Called, key: str, call: EffectCall | None) -> Any:
    args, kwargs = called.arguments()
    kwargs = _with_key(called.fn, kwargs, key)
    begin = call.begin if call is not None else None
    return await call_beside(called.fn, args, kwargs, begin=begin)


def _begun(
    call: EffectCall | None, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call *fn*, if the run is still held here."""
    if call is not None:
        call.begin()
    return fn(*args, **kwargs)


def _attempt_now(
    called: Called, key: str, attempts: RetryPolicy, call: EffectCall | None = None
) -> Any:
    fn, (args, kwargs) = called.fn, called.arguments()
    kwargs = _with_key(fn, kwargs, key)
    if attempts.concurrency is None:
        return attempt_now(call, attempts, lambda: _begun(call, fn, args, kwargs))
    with passing_now(attempts):
        return attempt_now(call, attempts, lambda: _begun(call, fn, args, kwargs))


def _with_key(fn: Callable[..., Any], kwargs: dict[str, Any], key: str) -> dict[str, Any]:
    if "idempotency_key" in kwargs:
        return kwargs
    if type(fn) is FunctionType and not fn.__dict__:
        code = fn.__code__  # of a plain function, for which a signature takes long to make
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        wanted = "idempotency_key" in names[code.co_posonlyargcount :]
    else:
        try:
            wanted = "idempotency_key" in inspect.signature(fn).parameters
        except (TypeError, ValueError):
            return kwargs
    return {**kwargs, "idempotency_key": key} if wanted else kwargs


def calls_behind(error: BaseException) -> list[str]:
    """The ids of the recorded calls that *error* came from."""
    return [*getattr(error, "__surehold_effects__", ())]


def hand_on(error: Exception) -> None:
    """Note on *error* the recorded calls that its causes came from.

    For frameworks that wrap what a call has raised.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        for one in calls_behind(cause):
            if one not in calls_behind(error):
                _came_from(error, one)
        cause = cause.__cause__


def _came_from(error: Exception, id: str) -> None:
    """Note on *error* the call it came from; a failed workflow makes that call again."""
    error.__dict__.setdefault("__surehold_effects__", []).append(id)


def _redacted(line: str, hooks: HookManager | None) -> str:
    """The text after the class in *line*, redacted; empty if redaction is impossible."""
    return failure_text(line, hooks).partition(": ")[2]


def _now() -> str:
    return encode_tree(datetime.now(UTC))[1:-1].decode()


def _seconds_since(moment: str) -> float:
    return time.time() - datetime.fromisoformat(moment).timestamp() if moment else 0.0
