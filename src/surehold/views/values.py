"""The state of a checkpoint: all of it, a value, its writers, its messages.

A path into a state is written as in ``state.messages[-1].content``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.core.values import decode
from surehold.engine.journal import Loaded, blame
from surehold.engine.managers import CheckpointManager
from surehold.engine.repair import state_text
from surehold.engine.runs import status_of_run
from surehold.engine.runs.effects import failure_in
from surehold.engine.runs.messages import attributes_of, status_of
from surehold.errors import NotFoundError, UsageError
from surehold.storage.addresses import nearest
from surehold.storage.base import RecordQuery, RunInfo
from surehold.views.documents import CheckpointInfo, Document
from surehold.views.timeline import entries_from, failed_node, record_after
from surehold.views.words import keys_of

_BLAMED = 500
"""Checkpoints that the search for writers looks back."""
MESSAGE_KEYS = ("messages", "conversation_history", "conversation", "history", "chat_history")
"""Keys under which frameworks keep messages."""
_ROLES = {"human": "user", "ai": "assistant"}
_PART = re.compile(r"\.?(?P<key>[^.\[\]]+)|\[(?P<index>-?[0-9]{1,18})\]|\[\"(?P<quoted>[^\"]*)\"\]")


def tree_of(loaded: Loaded) -> dict[str, Any]:
    """The state as the journal writes it; what JSON lacks is an object with ``$t``."""
    return {key: msgspec.json.decode(text) for key, text in loaded.texts.items()}


def parts_of(path: str) -> list[str | int]:
    """
    >>> parts_of('state.messages[-1]["content"]')
    ['state', 'messages', -1, 'content']
    """
    parts: list[str | int] = []
    at = 0
    while at < len(path):
        found = _PART.match(path, at)
        if found is None:
            raise UsageError(
                f"{path!r} is not a path: {path[at:]!r} cannot be read",
                hint='write it as in state.plan[0].status or state["a key"]',
            )
        index = found["index"]
        key = found["key"] if found["quoted"] is None else found["quoted"]
        parts.append(int(index) if index is not None else key)
        at = found.end()
    return parts


def value_at(root: Any, parts: list[str | int], address: str) -> Any:
    """The value at *parts*, or a `NotFoundError` that says which part is missing."""
    value, path = root, ""
    for part in parts:
        try:
            value = value[part]
        except (LookupError, TypeError):
            raise _missing(value, part, path, address) from None
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return value


def value_before(before: Loaded, path: str) -> Any:
    """The value at a JSON Pointer of a state, such as the one before a change."""
    first, *rest = keys_of(path)
    value: Any = decode(before.texts[first])
    for key in rest:
        value = value[int(key)] if isinstance(value, list | tuple) else value[key]
    return value


def _missing(value: Any, part: str | int, path: str, address: str) -> NotFoundError:
    near = ""
    if isinstance(value, dict):
        there = ", ".join(value)
        near = nearest(str(part), value)
    else:
        there = f"{len(value)} items" if isinstance(value, list) else "a single value"
    return NotFoundError(
        f"{address} has no {part!r} in {path or 'it'}",
        hint=f"{near}there is: {shorten(there, 200, placeholder=' ...') or 'nothing'}",
        run_id=address,
    )


def pointer_of(root: Any, parts: list[str | int]) -> str:
    """*parts* as a JSON Pointer; an index from the end is counted from the beginning."""
    pointer = ""
    for part in parts:
        from_start = part + len(root) if isinstance(part, int) and part < 0 else part
        pointer += f"/{str(from_start).replace('~', '~0').replace('/', '~1')}"
        root = root[part]
    return pointer


class Show(Document, kw_only=True, tag="show"):
    checkpoint: CheckpointInfo
    state: msgspec.Raw
    error: str = ""
    """The class and text of the error that its run failed with."""
    traceback: str = ""
    """The frames of user code that the error came from."""
    failed_in: str = ""
    """The node that its run failed in."""
    pinned: bool = False
    run_status: str = ""
    """The status of its run as `surehold runs` shows it, if it is the newest checkpoint."""
    published: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The values that its run has published, and its attributes, if it is the newest checkpoint."""


def read_checkpoint(manager: CheckpointManager, header: Header) -> Show:
    """A checkpoint with its state."""
    loaded = manager.reader.load_visible(header)
    run = manager.reader.run(header.run_id)
    newest = manager.reader.newest(run) if run is not None else None
    is_newest = newest is not None and newest.id == header.id
    return Show(
        checkpoint=CheckpointInfo.of(header),
        state=msgspec.Raw(state_text(loaded.texts)),
        error=failure_in(header, loaded.extras[-1]),
        traceback=failure_in(header, loaded.extras[-1], "traceback"),
        failed_in=failed_node(header, loaded.extras[-1]),
        pinned=header.seq in manager.retention.marks(header.run_id).pinned,
        run_status=status_of_run(manager.storage, run) if run and is_newest else "",
        published=attributes_of(header.run_id, storage=manager)
        | status_of(header.run_id, storage=manager)
        if is_newest
        else {},
    )


class ValueAt(Document, kw_only=True, tag="value"):
    """``cat``"""

    run_id: str
    checkpoint_id: str
    step: int
    path: str
    value: Any


def read_value_at(manager: CheckpointManager, header: Header, path: str, address: str) -> ValueAt:
    """The value at *path* of a checkpoint, which errors call *address*."""
    parts = parts_of(path)
    if parts[0] == "metadata":
        root: dict[str, Any] = {"metadata": header.metadata}
    else:
        root = {"state": _tree(manager, header, parts[1:2])}
    return ValueAt(
        run_id=header.run_id,
        checkpoint_id=header.id,
        step=header.step,
        path=path,
        value=value_at(root, parts, address),
    )


def _tree(manager: CheckpointManager, header: Header, key: list[str | int]) -> dict[str, Any]:
    """The state, or only the value under *key* if that is there."""
    texts = manager.reader.values(header, [str(one) for one in key]) if key else {}
    if texts:
        return {name: msgspec.json.decode(text) for name, text in texts.items()}
    return tree_of(manager.reader.load_visible(header))


class Blame(Document, kw_only=True, tag="blame"):
    key: str
    checkpoint: CheckpointInfo
    value: Any


def read_blame(manager: CheckpointManager, run: RunInfo, key: str) -> Blame:
    """The checkpoint that last wrote the value at *key*."""
    reader = manager.reader
    newest = reader.newest(run)
    found = None
    if newest is not None:
        state = tree_of(reader.load_visible(newest))
        parts = parts_of(key.removeprefix("state."))
        value = value_at(state, parts, run.run_id)
        found = blame(reader, run, pointer_of(state, parts), "")
    if found is None:
        raise NotFoundError(
            f"no step of run {run.run_id!r} wrote {key!r}",
            hint=f"surehold show {run.run_id} shows its state",
            run_id=run.run_id,
        )
    header = reader.resolve(found.checkpoint_id, run_id=run.run_id)
    return Blame(key=key, checkpoint=CheckpointInfo.of(header), value=value)


def state_at(manager: CheckpointManager, header: Header) -> bytes:
    """The text of the state of a checkpoint, as the journal writes it."""
    return state_text(manager.reader.load_visible(header).texts)


def last_writers(
    manager: CheckpointManager, run: RunInfo, header: Header, keys: list[str]
) -> dict[str, Header | None]:
    """The checkpoint up to *header* that last wrote each key; None if too old."""
    before = record_after(manager, run, header.seq)
    query = RecordQuery(run_id=run.run_id, scope=header.scope, limit=_BLAMED, before=before)
    headers = list(manager.storage.headers(query))
    writers: dict[str, Header | None] = dict.fromkeys(keys)
    if headers:
        upto = msgspec.structs.replace(run, seq=header.seq)
        entries, _ = entries_from(manager.reader, manager.retention, upto, headers[-1].seq, headers)
        for entry in entries:
            for change in entry.changes:
                key = keys_of(change.path)[0]
                if key in writers:
                    writers[key] = entry.header
    return writers


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
    for key in MESSAGE_KEYS:
        found = [turn for one in _list(_plain(state.get(key))) if (turn := read_turn(one))]
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


def read_turn(one: Any) -> ChatTurn | None:
    """A value as a message; None if it is none."""
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
