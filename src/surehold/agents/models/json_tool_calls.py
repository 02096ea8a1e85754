"""Tool calls of small models: one schema for every tool call and final answer.

The answer is ``{"tool": name, "args": {...}}`` or ``{"final": ...}``, and the server lets the
model write nothing else. The conversation is sent as plain turns, all that such models know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from surehold.agents.models.model import Message, ToolCall, ToolSpec
from surehold.errors import DecodeError

_LONGEST = 400
"""Longest final text: a small model may not end by itself."""


def forced_schema(tools: Sequence[ToolSpec], schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schema of one call of any of *tools*, or of the final answer."""
    final = dict(schema) if schema is not None else {"type": "string", "maxLength": _LONGEST}
    ways = [_object(tool={"const": tool.name}, args=dict(tool.parameters)) for tool in tools]
    return {"anyOf": [*ways, _object(final=final)]}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def plain_turns(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, str]]:
    """*messages* as system, user and assistant turns; the first describes tools."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    if tools:
        system.append("Answer with JSON: a call of one tool, or the final answer. The tools:")
        system += [f"- {tool.name}: {tool.description}" for tool in tools]
    turns = [{"role": "system", "content": "\n".join(system)}] if system else []
    for message in messages:
        if message["role"] == "system":
            continue
        turns += _turn(message)
    return turns


def _turn(message: Message) -> list[dict[str, str]]:
    role, text = message["role"], message.get("content") or ""
    if role == "tool":
        return [{"role": "user", "content": f"{message.get('name', 'The tool')} gave: {text}"}]
    calls = message.get("tool_calls") or ()
    if not calls:
        return [{"role": role, "content": text}]
    made = [json.dumps({"tool": call["name"], "args": call["arguments"]}) for call in calls]
    return [{"role": role, "content": "\n".join(made)}]


def read_forced(text: str, call_id: str) -> ToolCall | tuple[str, Any]:
    """The tool call, or the final answer: as text and, if it is JSON, as data."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise DecodeError(
            f"the model's answer is not JSON: {text[:80]!r}",
            hint="it may have been cut off: raise max_tokens",
        ) from error
    if "tool" in tree:
        return ToolCall(call_id, tree["tool"], tree["args"])
    final = tree["final"]
    return (final, None) if isinstance(final, str) else (json.dumps(final), final)
