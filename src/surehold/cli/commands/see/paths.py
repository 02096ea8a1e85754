"""Paths into a state, as in ``state.messages[-1].content``."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import Any

import msgspec

from surehold.engine.journal import Loaded
from surehold.errors import NotFoundError, UsageError
from surehold.storage.addresses import nearest

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
