"""Messages of a state in one form, whatever framework wrote them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_KEYS = ("messages", "conversation_history", "conversation", "history", "chat_history")
_ROLES = {"human": "user", "ai": "assistant"}


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
        found = [turn for one in _list(_plain(state.get(key))) if (turn := _turn(one))]
        if found:
            return found
    return []


def _plain(value: Any) -> Any:
    """The content of a value that the journal wraps with its type."""
    while isinstance(value, dict) and "$t" in value:
        value = value.get("v")
    if isinstance(value, dict) and isinstance(value.get("fields"), dict):
        return value["fields"]
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _turn(one: Any) -> ChatTurn | None:
    message = _plain(one)
    if not isinstance(message, dict):
        return None
    content = next((message[key] for key in ("content", "text", "parts") if key in message), None)
    calls = tuple(_call(call) for call in _list(_plain(message.get("tool_calls"))))
    role = _role(one, message)
    if not role or (content is None and not calls):
        return None
    if isinstance(message.get("to"), str):
        role = f"{role} to {message['to']}"
    name = message.get("name") or message.get("tool_name") or ""
    return ChatTurn(f"{role} {name}" if name else role, _text(_plain(content)), calls)


def _role(one: dict[str, Any], message: dict[str, Any]) -> str:
    """The role that a message states, or that its class is named after."""
    for key in ("role", "speaker", "type", "kind"):
        said = message.get(key)
        if isinstance(said, str):
            return _ROLES.get(said, said)
    kind = str(one.get("$t", "")).rpartition(".")[2].removesuffix("Chunk")
    if not kind.endswith("Message"):
        return ""
    role = kind.removesuffix("Message").lower()
    return _ROLES.get(role, role)


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
    arguments = next((inner[key] for key in ("arguments", "args", "input") if key in inner), "")
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{inner.get('name', 'call')}({said})"
