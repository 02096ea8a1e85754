"""Questions: a run waits for a person, and no process has to wait with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, overload

import msgspec

from surehold.core.policy import check_above_zero
from surehold.core.records import Answer, Question, digest_of
from surehold.core.values import decode, encode
from surehold.engine.hooks import hide_secrets
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.positions import call_context, check_awaited
from surehold.errors import Interrupted, UsageError

T = TypeVar("T")

_NOTHING: Any = object()
_DIGITS = 16


@overload
def interrupt(
    question: Any,
    *,
    schema: type[T],
    key: str | None = None,
    timeout: float | None = None,
    bound_to: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, T]: ...
@overload
def interrupt(
    question: Any,
    *,
    schema: Any = None,
    key: str | None = None,
    timeout: float | None = None,
    bound_to: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, Any]: ...
def interrupt(
    question: Any,
    *,
    schema: Any = None,
    key: str | None = None,
    timeout: float | None = None,
    bound_to: Mapping[str, Any] | None = None,
) -> Coroutine[Any, Any, Any]:
    """Ask *question*; the answer may come days later and in another process.

    The first time, the run waits: its state is saved, `Interrupted` is raised through the node
    and out of `execute` or `resume`, and the process is free. ``resume(run_id, answer=...)``, or
    `surehold.answer` and a resume, start the node again, in which this call now returns the
    answer; effects before it are not repeated.

    *schema* is a type that the answer must fit: ``bool``, ``Literal["yes", "no"]``, a dataclass,
    a msgspec Struct or a pydantic model; the answer is converted to it. One that does not fit is
    refused, and the question stays open. *key* tells questions of one step apart where their
    order is not fixed. Without an answer *timeout* seconds after it was first asked, this call is
    a `TimeoutError`, on every replay too; a worker resumes the run then by itself. A step,
    effect or tool can ask only if it may be repeated: it is called again with the answer.

    *bound_to* is what the answer is for, such as the arguments of a call: the question records a
    digest of each value. If one is another when the answer is there, the answer is not taken; the
    question is asked again, and its problem shows both sides.
    """
    check_above_zero(timeout=timeout)
    check_awaited("interrupt()", "call surehold.wait_for(event)")
    bound = {name: digest_of(encode(value))[:_DIGITS] for name, value in (bound_to or {}).items()}
    return to_await("interrupt()", _ask(question, schema, key, timeout, bound))


async def _ask(
    question: Any, schema: Any, key: str | None, timeout: float | None, bound: dict[str, str]
) -> Any:
    context = call_context()
    run = context.run if context is not None else None
    if context is None or run is None:
        raise UsageError(
            "interrupt() needs a run that can be resumed",
            hint="call it in a node of a graph that has a storage, or in an async workflow",
        )
    if not context.repeats:
        raise UsageError(
            "interrupt() is called inside a call that must not be made again",
            hint='ask before the call, or give it in_doubt="retry" (idempotent=True of a tool)',
        )
    context.check()
    ledger, spot = run.ledger, context.spot
    key = hide_secrets(key, run.hook_manager)
    position = context.take(spot.node or "question", key)
    spot = context.spot
    asked = ledger.find(Question, position)
    known, problem = ledger.find(Answer, position), ""
    if known is not None and not (asked is not None and asked.expired):
        answer, problem = _fitted(decode(bytes(known.value)), schema)
        if not known.taken:
            problem = problem or _changed(known.bound, known.asked, bound, question)
        if not problem:
            if bound and not known.taken:  # what it allows is done from here on
                ledger.defer(msgspec.structs.replace(known, taken=True), spot)
            return answer
    if asked is None:
        context.check_new(position)
    until = asked.until if asked is not None else timeout and time.time() + timeout
    given = ledger.given.pop(position, _NOTHING)
    past = given is _NOTHING and until is not None and until <= time.time()
    if asked is not None and (asked.expired or past):
        if not asked.expired:
            await ledger.write(msgspec.structs.replace(asked, expired=True), spot)
        raise TimeoutError(f"no answer to {position} came in time")
    if given is not _NOTHING:
        answer, problem = _fitted(given, schema)
        if asked is not None and not problem:
            problem = _changed(asked.bound, asked.text, bound, question)
        if not problem:
            text = msgspec.Raw(encode(given))
            await ledger.write(Answer(id=position, value=text, bound=bound, taken=True), spot)
            context.say("run.answered", question=position, node=spot.node)
            return answer
        ledger.refused = UsageError(
            f"the answer to {position} does not fit: {problem}", question=position
        )
    if asked is not None and asked.bound == bound:
        problem = problem or asked.problem  # of the last answer, which was not taken
    asked = Question(
        id=position,
        text=msgspec.Raw(encode(question)),
        schema=_described(schema),
        problem=problem,
        until=until,
        bound=bound,
    )
    ledger.ask(asked, spot)  # written with the checkpoint that makes the run wait
    await asyncio.sleep(0)  # sibling tasks that begin now ask their questions, too
    run_id = run.run_id
    left = Interrupted(f"run {run_id!r} waits for an answer to {position}", run_id=run_id)
    raise context.leave(left)


def _changed(before: dict[str, str], text: msgspec.Raw, bound: dict[str, str], now: Any) -> str:
    """The problem of an answer to another call than this; empty without one."""
    if not before or not bound or before == bound:
        return ""
    names = [name for name in {**before, **bound} if before.get(name) != bound.get(name)]
    digests = [f"{name} was {before.get(name)}, is {bound.get(name)} now" for name in names]
    told = f"the answer was to another call: {', '.join(digests)}"
    asked, asks = bytes(text).decode(), encode(now).decode()
    return told if asked == asks else f"{told}; it was asked {asked}, and is asked {asks} now"


def _fitted(answer: Any, schema: Any) -> tuple[Any, str]:
    """The answer converted to *schema*, or the reason why it does not fit."""
    if schema is None:
        return answer, ""
    if hasattr(schema, "model_validate"):
        try:
            return schema.model_validate(answer), ""
        except ValueError as error:
            return None, str(error)
    if isinstance(schema, type) and isinstance(answer, schema):
        return answer, ""
    try:
        return msgspec.convert(answer, schema), ""
    except msgspec.ValidationError as error:
        return None, str(error)


def _described(schema: Any) -> Any:
    if schema is None:
        return None
    if hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    return msgspec.json.schema(schema)
