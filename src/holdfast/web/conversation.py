"""Messages of a state in one form, whatever framework wrote them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

__all__ = ["ChatTurn", "read_turns"]

_KEYS = ("messages", "conversation_history", "conversation", "history", "chat_history")
_ROLES = {"human": "user", "ai": "assistant", "AIMessage": "assistant", "HumanMessage": "user"}


class ChatTurn(msgspec.Struct, frozen=True):
    """One message."""

    role: str
    text: str
    calls: tuple[str, ...] = ()
    """The tool calls that it asks for, as text."""


def read_turns(state: Any) -> list[ChatTurn]:
    """The messages of a state given as plain JSON values; empty if it holds none.

    >>> read_turns({"messages": [{"role": "user", "content": "hello"}]})
    [ChatTurn(role='user', text='hello', calls=())]
    """
    if not isinstance(state, dict):
        return []
    for key in _KEYS:
        found = [turn for one in _list(_plain(state.get(key))) if (turn := _turn(_plain(one)))]
        if found:
            return found
    inner = state.get("channel_values")
    return read_turns(inner) if inner is not None else []


def _plain(value: Any) -> Any:
    """The content of a value that the journal wraps with its type."""
    while isinstance(value, dict) and "$t" in value:
        inner = value.get("$v", value.get("v"))
        if inner is None:
            return {name: one for name, one in value.items() if name != "$t"}
        value = inner
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _turn(one: Any) -> ChatTurn | None:
    if not isinstance(one, dict):
        return None
    inner: Any = one.get("kwargs") if isinstance(one.get("kwargs"), dict) else one
    role = next((str(inner[k]) for k in ("role", "type", "kind") if inner.get(k)), "")
    if not role or not ("content" in inner or "text" in inner or "parts" in inner):
        return None
    content = next((inner[k] for k in ("content", "text", "parts") if k in inner), "")
    calls = tuple(_call(call) for call in _list(_plain(inner.get("tool_calls"))))
    name = inner.get("name") or inner.get("tool_name") or ""
    shown = _ROLES.get(role, role)
    return ChatTurn(f"{shown} {name}" if name else shown, _text(_plain(content)), calls)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, (_text(_part(part)) for part in content)))
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _part(part: Any) -> Any:
    part = _plain(part)
    if isinstance(part, dict):
        return part.get("text", part.get("content", part))
    return part


def _call(call: Any) -> str:
    call = _plain(call)
    if not isinstance(call, dict):
        return str(call)
    inner: Any = call.get("function") if isinstance(call.get("function"), dict) else call
    arguments = next((inner[k] for k in ("arguments", "args", "input") if k in inner), "")
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{inner.get('name', 'call')}({said})"
