"""Effects: calls to the outside world whose outcome the journal keeps.

Recorded effects are not repeated; doubtful ones are surfaced.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from holdfast import errors
from holdfast.checkpoint.effects.error_text import failure_here
from holdfast.checkpoint.effects.execution import CURRENT_STEP, Session, StepContext
from holdfast.checkpoint.effects.ledger import Effect
from holdfast.core.records import digest_of
from holdfast.core.values import decode, encode
from holdfast.errors import (
    EncodeError,
    InDoubtError,
    Interrupted,
    RunError,
    ShapeError,
    UsageError,
)

__all__ = ["InDoubt", "Usage", "args_digest", "effect", "effect_behind"]

T = TypeVar("T")

InDoubt = Literal["retry", "probe", "ask", "fail"]
_POLICIES = ("retry", "probe", "ask", "fail")

Usage = Callable[[Any], Mapping[str, float]]
"""Reads ``{"tokens": ..., "dollars": ...}`` from what an effect returned."""


async def effect(
    name: str,
    fn: Callable[..., Awaitable[T] | T],
    *args: Any,
    in_doubt: InDoubt | None = None,
    key: str | None = None,
    probe: Callable[[str], Any] | None = None,
    usage: Usage | None = None,
    **kwargs: Any,
) -> T:
    """Call *fn* inside a node, and keep what it returns in the run's journal.

    When the run is resumed and comes here again, the recorded outcome is returned, or the
    recorded exception raised, and *fn* is not called. If the process died between the call and
    the record of its outcome, the effect is in doubt, and *in_doubt* says what to do:

    - ``ask`` (the default): the run is parked until `holdfast.resolve` says what happened.
    - ``retry``: it is called again with the same idempotency key. For what is safe to repeat;
      it costs one write less.
    - ``probe``: *probe* is called with the idempotency key; what it returns is the outcome, and
      None means that it did not happen, so that it is called now.
    - ``fail``: `InDoubtError`.

    If *fn* takes an argument named ``idempotency_key`` and is not given one, it gets the key of
    this place in the run. A place is the scope, the step, the name, and how often the name came
    before in the step, or *key* instead of that count. Other arguments at the same place are a
    `ShapeError`. An exception of *fn* is an outcome too; when the failed step is resumed the call
    is made again. If *fn* itself cannot tell whether it happened, it raises `InDoubtError`.

    Outside a run, and in a graph that takes no checkpoints, *fn* is just called.
    """
    policy = _policy(name, in_doubt, probe)
    here = CURRENT_STEP.get()
    if here is None or here.session is None:
        return await _call(fn, args, kwargs, str(uuid.uuid4()))  # type: ignore[no-any-return]
    call = functools.partial(_call, fn, args, kwargs)
    doer = _Doer(here, here.session, policy, probe, usage)
    return await doer.do(name, key, args_digest(args, kwargs), call)  # type: ignore[no-any-return]


async def effect_behind(
    name: str, fn: Callable[..., Awaitable[T] | T], *args: Any, **kwargs: Any
) -> T:
    """`effect` with ``in_doubt="retry"``, which does not wait until its outcome is in the journal.

    It is on its way, and there before anything that the run writes later. So no effect is begun
    that hangs on an outcome which might be lost, and a crash in between has it called again.
    """
    here = CURRENT_STEP.get()
    if here is None or here.session is None:
        return await effect(name, fn, *args, in_doubt="retry", **kwargs)
    call = functools.partial(_call, fn, args, kwargs)
    doer = _Doer(here, here.session, _policy(name, "retry", None), None, None, wait=False)
    return await doer.do(name, None, args_digest(args, kwargs), call)  # type: ignore[no-any-return]


class _Doer:
    """One effect at its place in the run."""

    def __init__(
        self,
        here: StepContext,
        session: Session,
        policy: InDoubt,
        probe: Callable[[str], Any] | None,
        usage: Usage | None,
        *,
        wait: bool = True,
    ) -> None:
        self._here = here
        self._wait = wait
        self._ledger = session.ledger
        self._run_id = session.run_id
        self._branch = session.branch
        self._policy = policy
        self._probe = probe
        self._usage = usage
        # A parallel item that goes on in the same task must not move the notes of this one.
        self._spot = here.spot

    async def do(
        self, name: str, key: str | None, digest: str, call: Callable[[str], Awaitable[Any]]
    ) -> Any:
        place = self._here.position(name, key)
        known = self._ledger.find(Effect, place)
        if known is None:
            entry = Effect(
                id=place,
                name=name,
                key=self._key(place),
                args=digest,
                policy=self._policy,
                began=datetime.now(UTC).isoformat(),
            )
            if self._policy != "retry":
                await self._ledger.write(entry, self._spot)
            return await self._make(entry, call)
        if known.args != digest:
            raise _other_arguments(self._run_id, known)
        if known.done:
            self._say("effect.reused", known)
            return _outcome(known)
        return await self._doubtful(known, call)

    def _key(self, place: str) -> str:
        parts = [self._run_id, place]
        if self._branch:
            parts.append(str(self._branch))
        return digest_of("\0".join(parts).encode())

    async def _doubtful(self, known: Effect, call: Callable[[str], Awaitable[Any]]) -> Any:
        self._say("effect.in_doubt", known)
        if known.repeat or self._policy == "retry":
            return await self._make(known, call)
        if self._policy == "probe":
            assert self._probe is not None
            found = self._probe(known.key)
            if inspect.isawaitable(found):
                found = await found
            if found is None:
                return await self._make(known, call)
            await self._record(known, found, 0.0)
            return found
        if self._policy == "ask":
            raise Interrupted(
                f"run {self._run_id!r} waits: nobody knows whether {known.id} happened",
                run_id=self._run_id,
            )
        raise InDoubtError(
            f"effect {known.id} of run {self._run_id!r} began, and its outcome is not known",
            hint=f"find out, then holdfast.resolve({self._run_id!r}, {known.id!r}, outcome)",
            run_id=self._run_id,
            effect=known.id,
            key=known.key,
        )

    async def _make(self, entry: Effect, call: Callable[[str], Awaitable[Any]]) -> Any:
        self._say("effect.start", entry)
        started = time.perf_counter()
        try:
            value = await call(entry.key)
        except InDoubtError:
            raise
        except Exception as error:
            ended = msgspec.structs.replace(
                entry,
                done=True,
                error=(type(error).__name__, failure_here(error).partition(": ")[2]),
                seconds=time.perf_counter() - started,
            )
            await self._ledger.write(ended, self._spot, wait=self._wait)
            self._say("effect.complete", ended)
            raise
        await self._record(entry, value, time.perf_counter() - started)
        return value

    async def _record(self, entry: Effect, value: Any, seconds: float) -> None:
        spent = self._usage(value) if self._usage is not None else {}
        try:
            text = encode(value)
        except EncodeError as error:
            error.add_note(f"effect {entry.id} happened, but what it returned cannot be kept")
            raise
        ended = msgspec.structs.replace(
            entry,
            done=True,
            repeat=False,
            value=msgspec.Raw(text),
            seconds=seconds,
            tokens=int(spent.get("tokens", 0)),
            dollars=float(spent.get("dollars", 0.0)),
        )
        await self._ledger.write(ended, self._spot, wait=self._wait)
        self._say("effect.complete", ended)

    def _say(self, kind: str, entry: Effect) -> None:
        if self._here.emit is not None:
            data: dict[str, Any] = {"effect": entry.id, "name": entry.name, "node": self._spot.node}
            if kind in ("effect.complete", "effect.reused"):
                data |= {
                    "error": entry.error[0] if entry.error else None,
                    "seconds": entry.seconds,
                    "tokens": entry.tokens,
                    "dollars": entry.dollars,
                }
            self._here.emit(kind, data)


def _policy(name: str, in_doubt: str | None, probe: object) -> InDoubt:
    if not name:
        raise UsageError("an effect needs a name")
    policy = in_doubt or ("probe" if probe is not None else "ask")
    if policy not in _POLICIES:
        raise UsageError(f"in_doubt is {policy!r}", hint=f"one of {', '.join(_POLICIES)}")
    if (policy == "probe") != (probe is not None):
        raise UsageError(
            f"effect {name!r} has in_doubt={policy!r} and {'no' if probe is None else 'a'} probe",
            hint="give probe=, a function of the idempotency key, with in_doubt='probe'",
        )
    return policy  # type: ignore[return-value]


async def _call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str
) -> Any:
    if _wants_key(fn) and "idempotency_key" not in kwargs:
        kwargs = {**kwargs, "idempotency_key": key}
    if inspect.iscoroutinefunction(fn):
        return await fn(*args, **kwargs)
    # A plain function may block, and the loop has other things to do meanwhile.
    result = await asyncio.to_thread(fn, *args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _wants_key(fn: Callable[..., Any]) -> bool:
    try:
        return "idempotency_key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False


def args_digest(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A digest of arguments. Of what cannot be stored, a client say, only the type counts."""
    parts = [_text(value) for value in args]
    parts += [name.encode() + b"=" + _text(kwargs[name]) for name in sorted(kwargs)]
    return digest_of(b"\0".join(parts))


def _text(value: Any) -> bytes:
    try:
        return encode(value)
    except EncodeError:
        return f"<{type(value).__qualname__}>".encode()


def _outcome(known: Effect) -> Any:
    if known.error is None:
        return decode(bytes(known.value))
    kind, text = known.error
    found = getattr(builtins, kind, None) or getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            raise found(text)
        except TypeError as error:
            raise RunError(f"effect {known.id} had ended with {kind}: {text}") from error
    raise RunError(f"effect {known.id} had ended with {kind}: {text}", error_type=kind)


def _other_arguments(run_id: str, known: Effect) -> ShapeError:
    return ShapeError(
        f"effect {known.id} of run {run_id!r} is called with other arguments than it was before",
        hint="what decides on the arguments (time, chance, a model) must be an effect of its own;"
        " to do something else, fork the run",
        run_id=run_id,
        effect=known.id,
    )
