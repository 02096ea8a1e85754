"""Two states -> what changed, and back.

Changes are operations shaped like JSON Patch (RFC 6902): ``add``, ``replace`` and ``remove`` with
JSON Pointer paths, an append being an ``add`` at ``/-``. They are made as text, because that is
how they are stored, and only for what differs: an unchanged value is recognised by identity, a
list that only grew by its lineage or by its old text being a prefix of the new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.codec import decode, encode, encode_tree, parse
from holdfast.core.frozen import FrozenDict, FrozenList, Nature
from holdfast.errors import CorruptError

__all__ = ["LAZY_BYTES", "Base", "Lazy", "Operation", "Rebuilt", "changes", "operations", "touches"]

LAZY_BYTES = 1 << 16
"""A loaded value whose text is longer than this is decoded when it is first looked at."""

_MANY = 64


class Lazy:
    """A value that is still text."""

    __slots__ = ("_value", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._value: Any = self

    @property
    def resolved(self) -> bool:
        """True once it was looked at."""
        return self._value is not self

    def get(self) -> Any:
        if self._value is self:
            self._value = decode(self.text, frozen=True)
        return self._value


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: what was done, where, and the new value as text."""

    op: str
    path: str
    value: msgspec.Raw = msgspec.Raw()

    def content(self) -> Any:
        """The new value; None for a removal."""
        return decode(bytes(self.value)) if self.value else None


_read_operations = msgspec.json.Decoder(list[Operation]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_mapping = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def operations(text: bytes) -> list[Operation]:
    """The operations that a patch's text holds."""
    return _read_operations(text)


class Base(msgspec.Struct):
    """What is remembered of the state last saved, to tell what changes next.

    `values` are frozen and compared by identity. Values that may change under our hands are in
    `texts` instead, and are compared as text.
    """

    values: dict[str, Any]
    texts: dict[str, bytes]
    size: int
    """Bytes of the state as JSON text."""

    def keys(self) -> list[str]:
        return [*self.values]


class _Patch:
    """Collects operations as text and keeps count of what they do to the state's size.

    *encode* writes the values met on the way: those of frozen values, or those of trees that are
    tagged already.
    """

    __slots__ = ("encode", "growth", "operations")

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self.encode = encode
        self.operations: list[bytes] = []
        self.growth = 0

    def add(self, path: str, value: bytes, extra: int) -> None:
        """*extra* is what surrounds the value: a comma, a key."""
        self.operations.append(
            b'{"op":"add","path":%b,"value":%b}' % (encode_tree(path), value)
        )
        self.growth += len(value) + extra

    def replace(self, path: str, value: bytes, old_length: int) -> None:
        self.operations.append(
            b'{"op":"replace","path":%b,"value":%b}' % (encode_tree(path), value)
        )
        self.growth += len(value) - old_length

    def remove(self, path: str, length: int) -> None:
        self.operations.append(b'{"op":"remove","path":%b}' % encode_tree(path))
        self.growth -= length

    def text(self) -> bytes:
        return b"[%b]" % b",".join(self.operations)


def changes(
    base: Base, values: Mapping[str, Any], natures: Mapping[str, Nature]
) -> tuple[bytes | None, Base]:
    """The patch from *base* to *values* (None if nothing changed), and the next base.

    *natures* says of each value how it is compared: by identity, or as text if it is LIVE.
    """
    patch = _Patch(encode)
    old_values, old_texts = base.values, base.texts
    texts: dict[str, bytes] = {}
    if not _same_order(old_values, values):
        text, fresh = whole(values, natures)
        patch.replace("", text, base.size)
        return patch.text(), fresh
    gone = [key for key in old_values if key not in values]
    count = len(old_values)
    for key in gone:
        old = _text_of(old_values[key], old_texts.get(key))
        count -= 1
        patch.remove(_pointer(key), _item_length(key, len(old), count))
    for key, value in values.items():
        if natures[key] is Nature.LIVE:
            texts[key] = text = encode(value)
            if key in old_values:
                _diff_texts(_text_of(old_values[key], old_texts.get(key)), text, key, patch)
        elif key not in old_values:
            text = encode_value(value, natures[key])
        else:
            old = old_values[key]
            if old is not value:
                if key in old_texts:
                    _diff_texts(old_texts[key], encode_value(value, natures[key]), key, patch)
                else:
                    _diff_frozen(old, value, natures[key], key, patch)
            continue
        if key not in old_values:
            patch.add(_pointer(key), text, _item_length(key, 0, count))
            count += 1
    after = Base(dict(values), texts, base.size + patch.growth)
    return (patch.text() if patch.operations else None), after


def whole(values: Mapping[str, Any], natures: Mapping[str, Nature]) -> tuple[bytes, Base]:
    """The state as one text, and the base that it makes."""
    texts: dict[str, bytes] = {}
    parts = []
    for key, value in values.items():
        text = encode_value(value, natures[key])
        if natures[key] is Nature.LIVE:
            texts[key] = text
        parts.append(b"%b:%b" % (encode_tree(key), text))
    state = b"{%b}" % b",".join(parts)
    return state, Base(dict(values), texts, len(state))


def encode_value(value: Any, nature: Nature) -> bytes:
    """The text of a state's value, which may still be text."""
    if type(value) is Lazy:
        return value.text
    return encode(value) if nature is Nature.LIVE else encode(value, nature)


def _text_of(value: Any, text: bytes | None) -> bytes:
    if text is not None:
        return text
    return value.text if type(value) is Lazy else encode(value)


def _item_length(key: str, length: int, neighbours: int) -> int:
    return len(encode_tree(key)) + 1 + length + (1 if neighbours else 0)


def _pointer(key: object) -> str:
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


def _same_order(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> bool:
    """True if removing and adding keys turns the order of *old* into that of *new*."""
    if len(old) <= len(new):
        pairs = zip(old, new, strict=False)
        if all(a == b for a, b in pairs):
            return True
    kept = [key for key in old if key in new]
    return all(a == b for a, b in zip(kept, new, strict=False))


def _diff_texts(old: bytes, new: bytes, key: str, patch: _Patch) -> None:
    if old == new:
        return
    path = _pointer(key)
    if old[:1] == b"[" == new[:1] and (old == b"[]" or _is_prefix(old, new)):
        start = len(old) - 1
        tail = new[start:] if old == b"[]" else new[start + 1 :]
        comma = 0 if old == b"[]" else 1
        for item in _read_items(b"[" + tail):
            patch.add(path + "/-", bytes(item), comma)
            comma = 1
        return
    inner = _Patch(encode_tree)
    _diff(parse(old), parse(new), path, inner)
    if len(inner.operations) > _MANY and sum(map(len, inner.operations)) > len(new):
        patch.replace(path, new, len(old))
    else:
        _join(patch, inner)


def _is_prefix(old: bytes, new: bytes) -> bool:
    """True if *new* is the list *old* with more items: its text less the ``]``, then a comma."""
    end = len(old) - 1
    return new[end : end + 1] == b"," and new.startswith(old[:end])


def _diff_frozen(old: Any, new: Any, nature: Nature, key: str, patch: _Patch) -> None:
    if type(old) is Lazy:
        if type(new) is Lazy:
            _diff_texts(old.text, new.text, key, patch)
            return
        old = old.get()
        if old is new:
            return
    if type(new) is Lazy:
        new = new.get()
    path = _pointer(key)
    inner = _Patch(encode)
    _diff(old, new, path, inner)
    if len(inner.operations) > _MANY:
        text = encode(new, nature)
        if sum(map(len, inner.operations)) > len(text):
            patch.replace(path, text, len(encode(old)))
            return
    _join(patch, inner)


def _join(patch: _Patch, inner: _Patch) -> None:
    patch.operations += inner.operations
    patch.growth += inner.growth


def _is_plain_dict(value: Any) -> bool:
    """True for a dict that JSON writes as an object, whose keys can be pointed at."""
    if type(value) is FrozenDict:
        return "$t" not in value and all(type(key) is str for key in value)
    return type(value) is dict and "$t" not in value


def _diff(old: Any, new: Any, path: str, patch: _Patch) -> None:
    if old is new:
        return
    if type(old) is type(new):
        if _is_plain_dict(old) and _is_plain_dict(new) and _same_order(old, new):
            _diff_dicts(old, new, path, patch)
            return
        if isinstance(new, list):
            _diff_lists(old, new, path, patch)
            return
    before, after = patch.encode(old), patch.encode(new)
    if before != after:
        patch.replace(path, after, len(before))


def _diff_dicts(old: Any, new: Any, path: str, patch: _Patch) -> None:
    count = len(old)
    for key in old:
        if key not in new:
            count -= 1
            patch.remove(path + _pointer(key), _item_length(key, len(patch.encode(old[key])), count))
    for key, value in new.items():
        if key in old:
            _diff(old[key], value, path + _pointer(key), patch)
        else:
            patch.add(path + _pointer(key), patch.encode(value), _item_length(key, 0, count))
            count += 1


def _diff_lists(old: Any, new: Any, path: str, patch: _Patch) -> None:
    if type(new) is FrozenList and new.grew_from(old):
        start = len(old)
    else:
        start = _common(old, new, patch.encode)
    end = 0 if start == len(old) else _common(
        reversed(old[start:]), reversed(new[start:]), patch.encode
    )
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    both = min(len(old_middle), len(new_middle))
    for index in range(both):
        _diff(old_middle[index], new_middle[index], f"{path}/{start + index}", patch)
    count = len(old)
    for index in range(len(old_middle) - 1, both - 1, -1):
        count -= 1
        patch.remove(
            f"{path}/{start + index}", len(patch.encode(old_middle[index])) + (1 if count else 0)
        )
    for index in range(both, len(new_middle)):
        place = "-" if start + index == count else str(start + index)
        patch.add(f"{path}/{place}", patch.encode(new_middle[index]), 1 if count else 0)
        count += 1


def _common(
    old: Iterable[Any], new: Iterable[Any], encode: Callable[[Any], bytes]
) -> int:
    """How many items at the start of both are the same."""
    count = 0
    for a, b in zip(old, new, strict=False):
        if a is not b and encode(a) != encode(b):
            break
        count += 1
    return count


class Rebuilt:
    """A state in the making: a keyframe's text with deltas applied to it.

    Values stay text as long as they are only replaced or appended to.
    """

    def __init__(self, state: bytes) -> None:
        self._slots = {key: _Slot(bytes(raw)) for key, raw in _read_mapping(state).items()}

    def apply(self, patch: bytes) -> None:
        """Carry out the operations of a patch's text."""
        for step in operations(patch):
            if step.path == "":
                self._slots = {k: _Slot(bytes(raw)) for k, raw in _read_mapping(step.value).items()}
                continue
            key, _, rest = step.path[1:].partition("/")
            key = _unescape(key)
            if rest:
                self._slots[key].change(step, rest)
            elif step.op == "remove":
                del self._slots[key]
            elif step.op == "replace" and key in self._slots:
                self._slots[key] = _Slot(bytes(step.value))
            elif step.op == "add" and key not in self._slots:
                self._slots[key] = _Slot(bytes(step.value))
            else:
                raise CorruptError(f"a delta does not fit the state it changes: {step.path}")

    def texts(self) -> dict[str, bytes]:
        """Each value's text, by key, in order."""
        return {key: slot.text() for key, slot in self._slots.items()}


class _Slot:
    """One value of a state in the making: text, text with items to append, or a tree."""

    __slots__ = ("_tail", "_text", "_tree")

    def __init__(self, text: bytes) -> None:
        self._text: bytes | None = text
        self._tail: list[bytes] = []
        self._tree: Any = None

    def text(self) -> bytes:
        if self._text is None:
            self._text = encode_tree(self._tree)
            self._tree = None
        elif self._tail:
            head = self._text[:-1]
            items = b",".join(self._tail)
            self._text = b"%b%b%b]" % (head, b"" if head == b"[" else b",", items)
            self._tail = []
        return self._text

    def change(self, step: Operation, rest: str) -> None:
        if rest == "-" and self._text is not None and self._text[:1] == b"[":
            self._tail.append(bytes(step.value))
            return
        if self._text is not None:
            self._tree = parse(self.text())
            self._text = None
        *way, last = (_unescape(part) for part in rest.split("/"))
        place = self._tree
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        _change(place, last, step)


def _change(place: Any, last: str, step: Operation) -> None:
    value = parse(bytes(step.value)) if step.value else None
    if isinstance(place, dict):
        if step.op == "remove":
            del place[last]
        else:
            place[last] = value
    elif step.op == "remove":
        del place[int(last)]
    elif step.op == "add":
        place.insert(len(place) if last == "-" else int(last), value)
    else:
        place[int(last)] = value


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def touches(step: Operation, path: str) -> bool:
    """Whether an operation wrote the value at *path*, something inside it or something around it.

    >>> touches(Operation("add", "/messages/-"), "/messages")
    True
    >>> touches(Operation("replace", "/plan"), "/plan/0/status")
    True
    """
    here, there = step.path + "/", path + "/"
    return here.startswith(there) or there.startswith(here)


def walk(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a tree with its path."""
    if isinstance(tree, dict) and tree:
        for key, item in tree.items():
            yield from walk(item, path + _pointer(key))
    elif isinstance(tree, list) and tree:
        for index, item in enumerate(tree):
            yield from walk(item, f"{path}/{index}")
    else:
        yield path, tree
