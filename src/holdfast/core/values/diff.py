"""Differences between two values, as the text of JSON Patch operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.values.codec import encode, encode_tree, parse
from holdfast.core.values.frozen import FrozenDict, FrozenList, Nature
from holdfast.core.values.scalars import write_str
from holdfast.errors import EncodeError

_MANY = 64
"""From this many operations on it is asked whether the whole value is shorter than they are."""

_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Patch:
    """Collects operations as text and keeps count of what they do to the length of a text.

    *encode* writes the values met on the way: those of frozen values, or those of trees that are
    tagged already.
    """

    __slots__ = ("encode", "growth", "operations")

    def __init__(self, encode: Callable[[Any], bytes] = encode) -> None:
        self.encode = encode
        self.operations: list[bytes] = []
        self.growth = 0

    def add(self, path: str, value: bytes, extra: int) -> None:
        """*extra* is the length of what surrounds the value: a comma, a key."""
        self.operations.append(b'{"op":"add","path":%b,"value":%b}' % (encode_tree(path), value))
        self.growth += len(value) + extra

    def replace(self, path: str, value: bytes, old_length: int) -> None:
        self.operations.append(
            b'{"op":"replace","path":%b,"value":%b}' % (encode_tree(path), value)
        )
        self.growth += len(value) - old_length

    def remove(self, path: str, length: int) -> None:
        self.operations.append(b'{"op":"remove","path":%b}' % encode_tree(path))
        self.growth -= length

    def join(self, other: Patch) -> None:
        self.operations += other.operations
        self.growth += other.growth

    def longer_than(self, text: bytes) -> bool:
        return sum(map(len, self.operations)) > len(text)

    def text(self) -> bytes:
        return b"[%b]" % b",".join(self.operations)


def pointer(key: str) -> str:
    """*key* as a part of a JSON Pointer."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


def key_text(key: object) -> bytes:
    """The text of a state's key; an `EncodeError` if it cannot be one."""
    if not isinstance(key, str):
        raise EncodeError(
            f"a state's keys are strings, and {key!r} is not", hint="nest the dict under a key"
        )
    if write_str(key) is not key:
        raise EncodeError(f"the key {key!r} is not valid Unicode")
    return encode_tree(key)


def member_length(key: str, length: int, neighbours: int) -> int:
    """The length of a key and its value among so many others in an object's text."""
    return len(encode_tree(key)) + 1 + length + (1 if neighbours else 0)


def same_order(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if removing keys and adding others at the end turns the order of *old* into *new*'s."""
    order = list(new)
    if order[: len(old)] == list(old):
        return True
    kept = [key for key in old if key in new]
    return order[: len(kept)] == kept


def diff_texts(old: bytes, new: bytes, path: str, patch: Patch) -> None:
    """Add to *patch* what turns one text of a value into another."""
    if old == new:
        return
    if old == b"[]" and new[:1] == b"[":
        append_items(new[1:], path, 0, patch)
    elif old[:1] == b"[" and _is_prefix(old, new):
        append_items(new[len(old) :], path, 1, patch)
    else:
        inner = Patch(encode_tree)
        _diff(parse(old), parse(new), path, inner)
        if len(inner.operations) > _MANY and inner.longer_than(new):
            patch.replace(path, new, len(old))
        else:
            patch.join(inner)


def _is_prefix(old: bytes, new: bytes) -> bool:
    """True if *new* is the list *old* with more items: its text less the ``]``, then a comma."""
    end = len(old) - 1
    return new[end : end + 1] == b"," and new.startswith(old[:end])


def append_items(tail: bytes, path: str, comma: int, patch: Patch) -> None:
    """Add to *patch* the items of *tail*: their text and the bracket that closes their list."""
    for item in _read_items(b"[" + tail):
        patch.add(path + "/-", bytes(item), comma)
        comma = 1


def diff_values(old: Any, new: Any, nature: Nature, path: str, patch: Patch) -> None:
    """Add to *patch* what turns one frozen value into another, of that nature."""
    if type(old) is FrozenList and type(new) is FrozenList and new.grew_from(old):
        added = new[len(old) :]
        if len(added) <= _MANY:
            comma = 1 if old else 0
            for item in added:
                patch.add(path + "/-", encode(item), comma)
                comma = 1
            return
    inner = Patch()
    _diff(old, new, path, inner)
    if len(inner.operations) > _MANY:
        text = encode(new, nature)
        if inner.longer_than(text):
            patch.replace(path, text, len(encode(old)))
            return
    patch.join(inner)


def _diff(old: Any, new: Any, path: str, patch: Patch) -> None:
    if old is new:
        return
    kind = type(old)
    if kind is type(new):
        if kind is FrozenList or kind is list:
            _diff_lists(old, new, path, patch)
            return
        if (
            (kind is FrozenDict or kind is dict)
            and _is_object(old)
            and _is_object(new)
            and same_order(old, new)
        ):
            _diff_objects(old, new, path, patch)
            return
        if (kind is str or kind is int) and old == new:
            return
    before, after = patch.encode(old), patch.encode(new)
    if before != after:
        patch.replace(path, after, len(before))


def _is_object(value: Any) -> bool:
    """True for a dict that JSON writes as an object, whose keys can be pointed at."""
    if "$t" in value:
        return False
    return type(value) is dict or all(type(key) is str and write_str(key) is key for key in value)


def _diff_objects(old: Any, new: Any, path: str, patch: Patch) -> None:
    count = len(old)
    for key in old:
        if key not in new:
            count -= 1
            length = member_length(key, len(patch.encode(old[key])), count)
            patch.remove(path + pointer(key), length)
    for key, value in new.items():
        if key not in old:
            patch.add(path + pointer(key), patch.encode(value), member_length(key, 0, count))
            count += 1
        elif old[key] is not value:
            _diff(old[key], value, path + pointer(key), patch)


def _diff_lists(old: Any, new: Any, path: str, patch: Patch) -> None:
    if type(new) is FrozenList and new.grew_from(old):
        start, end = len(old), 0
    else:
        start = _common(old, new, patch.encode)
        end = _common(reversed(old[start:]), reversed(new[start:]), patch.encode)
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    both = min(len(old_middle), len(new_middle))
    for index in range(both):
        _diff(old_middle[index], new_middle[index], f"{path}/{start + index}", patch)
    count = len(old)
    for index in range(len(old_middle) - 1, both - 1, -1):
        count -= 1
        length = len(patch.encode(old_middle[index])) + (1 if count else 0)
        patch.remove(f"{path}/{start + index}", length)
    for index in range(both, len(new_middle)):
        place = "-" if start + index == count else str(start + index)
        patch.add(f"{path}/{place}", patch.encode(new_middle[index]), 1 if count else 0)
        count += 1


def _common(old: Iterable[Any], new: Iterable[Any], encode: Callable[[Any], bytes]) -> int:
    """Count the equal items at the start of both."""
    count = 0
    for a, b in zip(old, new, strict=False):
        if a is not b:
            if type(a) is not type(b):
                break
            if type(a) is str or type(a) is int:
                if a != b:
                    break
            elif encode(a) != encode(b):
                break
        count += 1
    return count
