"""Redaction of encoded values: the text of a record without its secrets."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import msgspec

_MARKER = re.compile(r"\[redacted:[a-z0-9_]+\]")
_BYTES = frozenset(["bytes", "bytearray"])


def redact_text(text: bytes, redact: Callable[[Any], Any]) -> bytes:
    """Return what the codec wrote with its values replaced by *redact*.

    Values of all types are searched, those of unknown classes too, because the text is read
    without making objects. If *redact* changes nothing, *text* itself is returned.
    """
    tree = msgspec.json.decode(text)
    if b'"$t"' in text:
        tree = _lifted(tree)
    made = redact(tree)
    return text if made is tree else msgspec.json.encode(_lowered(made))


class _Tag:
    """The name of a type, hidden from redaction."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class _Tagged(msgspec.Struct):
    """A value with a type, as the codec writes it."""

    tag: _Tag
    v: Any


def _lifted(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_lifted(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$t" not in tree:
        return {key: _lifted(value) for key, value in tree.items()}
    tag, value = tree["$t"], tree.get("v")
    if isinstance(value, str) and tag in _BYTES:
        return _Tagged(_Tag(tag), b64decode(value))
    if isinstance(value, str) and tag == "str":
        value = b64decode(value).decode("utf-16-le", "surrogatepass")
        return _Tagged(_Tag(tag), value)
    return _Tagged(_Tag(tag), _lifted(value))


def _lowered(tree: Any) -> Any:
    if isinstance(tree, list | tuple):
        return [_lowered(item) for item in tree]
    if isinstance(tree, dict):
        return {key: _lowered(value) for key, value in tree.items()}
    if not isinstance(tree, _Tagged):
        return tree
    tag, value = tree.tag.name, tree.v
    if isinstance(value, str) and _MARKER.fullmatch(value):
        return value
    if isinstance(value, bytes):
        value = b64encode(value).decode()
    elif tag == "str":
        value = b64encode(value.encode("utf-16-le", "surrogatepass")).decode()
    return {"$t": tag, "v": _lowered(value)}
