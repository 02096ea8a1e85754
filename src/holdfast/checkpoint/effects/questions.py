"""Questions: a node waits for a person, and no process has to wait with it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoint.effects.execution import CURRENT_STEP
from holdfast.checkpoint.effects.ledger import Answer, Question
from holdfast.core.values import decode, encode
from holdfast.errors import Interrupted, UsageError

__all__ = ["interrupt"]

_NOTHING: Any = object()


async def interrupt(question: Any, *, schema: Any = None, key: str | None = None) -> Any:
    """Ask *question* and give the answer, which may come days later and in another process.

    The first time, the run is parked: its state is saved, `Interrupted` is raised through the
    node and out of `execute` or `resume`, and the process is free. ``resume(run_id, answer=...)``
    starts the node again, in which this call now returns the answer; effects before it are not
    repeated.

    *schema* is a type that the answer must fit: ``bool``, ``Literal["yes", "no"]``, a dataclass,
    a msgspec Struct or a pydantic model; the answer is converted to it. One that does not fit is
    refused, and the question stays open. *key* tells questions of one step apart where their
    order is not fixed.
    """
    here = CURRENT_STEP.get()
    if here is None or here.session is None:
        raise UsageError(
            "interrupt() needs a run that can be resumed",
            hint="call it in a node of a graph whose checkpoint interval is 1 or more",
        )
    ledger = here.session.ledger
    position = here.position(here.node, key)
    known, problem = ledger.find(Answer, position), ""
    if known is not None:
        answer, problem = _fitted(decode(bytes(known.value)), schema)
        if not problem:
            return answer
    given = ledger.given.pop(position, _NOTHING)
    if given is _NOTHING:
        return _park(question, schema, position, problem)
    answer, problem = _fitted(given, schema)
    if problem:
        ledger.refused = UsageError(
            f"the answer to {position} does not fit: {problem}", question=position
        )
        return _park(question, schema, position, problem)
    entry = Answer(id=position, value=msgspec.Raw(encode(given)))
    await ledger.write(entry, here.spot)
    here.say("run.answered", question=position, node=here.node)
    return answer


def _park(question: Any, schema: Any, position: str, problem: str) -> Any:
    here = CURRENT_STEP.get()
    assert here is not None and here.session is not None
    asked = Question(
        id=position,
        text=msgspec.Raw(encode(question)),
        schema=_described(schema),
        problem=problem,
    )
    here.session.ledger.ask(asked, here.spot)
    raise Interrupted(
        f"run {here.session.run_id!r} waits for an answer to {position}",
        run_id=here.session.run_id,
    )


def _fitted(answer: Any, schema: Any) -> tuple[Any, str]:
    """The answer as *schema* wants it, or why it does not fit."""
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
