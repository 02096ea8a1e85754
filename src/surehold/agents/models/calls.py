"""Model calls as effects: recorded with their usage, and not repeated on a resume."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surehold.agents.models.model import Message, Model, Reply, ToolCall, ToolSpec
from surehold.core.values import Usage
from surehold.engine.runs.effects import effect


async def ask(
    model: Model,
    messages: Sequence[Message],
    *,
    name: str = "model",
    tools: Sequence[ToolSpec] = (),
    schema: Mapping[str, Any] | None = None,
    on_text: Callable[[str], None] | None = None,
    before: Callable[[], None] | None = None,
) -> Reply:
    """Ask *model*, or return the reply that the journal has recorded here.

    Inside a step the reply is an effect called *name*, with its tokens and dollars. If the process
    died during the call, it is made again. The model, its tools and the system message may change
    before a resume; other messages at the same place are a `ShapeError`. *before* is called only
    if the model is.
    """

    async def call(said: Any) -> dict[str, Any]:
        if before is not None:
            before()
        started = time.perf_counter()
        reply = await model.respond(messages, tools=tools, schema=schema, on_text=on_text)
        usage = dataclasses.replace(reply.usage, seconds=time.perf_counter() - started)
        named = reply.model or model.name
        reply = dataclasses.replace(reply, usage=usage, model=named)
        calls = [call.to_dict() for call in reply.tool_calls]
        return {**dataclasses.asdict(reply), "tool_calls": calls}

    tree: dict[str, Any] = await effect(name, call, _gist(messages), in_doubt="retry", usage=_spent)
    calls = tuple(ToolCall(**call) for call in tree["tool_calls"])
    return Reply(tree["text"], calls, tree["data"], Usage.read(tree["usage"]), tree["model"])


def _gist(messages: Sequence[Message]) -> list[Any]:
    """Enough of a conversation to tell it from another one at the same place."""
    said = [message for message in messages if message["role"] != "system"]
    return [len(said), said[-1] if said else None]


def _spent(tree: Mapping[str, Any]) -> dict[str, Any]:
    usage = Usage.read(tree["usage"])
    named = {"model": tree["model"] or "", "output": usage.output_tokens}
    return {"tokens": usage.tokens, "dollars": usage.cost_usd or 0.0, **named}
