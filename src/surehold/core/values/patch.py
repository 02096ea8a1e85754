"""Two states -> what changed, as the text of operations.

Changes are operations shaped like JSON Patch (RFC 6902): ``add``, ``replace`` and ``remove`` with
JSON Pointer paths, an append being an ``add`` at ``/-``. They are made as text, because that is
how they are stored, and only for what differs: an unchanged value is recognised by identity, a
list that only grew by its lineage or by its old text being a prefix of the new. `rebuild` goes
back.

>>> from surehold.core.values.frozen import Nature
>>> state, base = whole({"step": 1}, {"step": Nature.PLAIN})
>>> changes(base, {"step": 2}, {"step": Nature.PLAIN})[0]
b'[{"op":"replace","path":"/step","value":2}]'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import msgspec

from surehold.core.values.codec import decode, encode, encode_tree, parse
from surehold.core.values.frozen import FrozenDict, FrozenList, Nature, at_path
from surehold.core.values.list_snapshot import SeenList
from surehold.core.values.scalars import write_str
from surehold.errors import EncodeError

LAZY_BYTES = 1 << 16
"""A loaded value whose text is longer than this is decoded when it is first looked at."""

_MANY = 64
"""From this many operations on it is asked whether the whole value is shorter than they are."""
_LIVE = Nature.LIVE
_publishing = Lock()

_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


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
        """The value, frozen: always the same object, whichever threads ask for it."""
        if self._value is self:
            value = decode(self.text, frozen=True)
            with _publishing:
                if self._value is self:
                    self._value = value
        return self._value


class Items:
    """A list that is still text, item by item; longer ones share what is common.

    *texts* is only ever added to. The list is its first *count* items.
    """

    __slots__ = ("count", "texts")

    def __init__(self, texts: list[bytes], count: int) -> None:
        self.texts = texts
        self.count = count

    @property
    def text(self) -> bytes:
        """The text of the whole list."""
        return list_text(self.texts, self.count)

    def get(self) -> Any:
        """The value, frozen."""
        return decode(self.text, frozen=True)

    def grew_from(self, other: Items) -> bool:
        """True if it is *other* with items added at the end, by how both were made."""
        return self.texts is other.texts and self.count >= other.count

    def after(self, count: int) -> list[bytes]:
        """The texts of the items that follow the first so many."""
        return self.texts[count : self.count]


_TEXTS = (Lazy, Items)


def list_text(pieces: Sequence[bytes | memoryview], count: int) -> bytes:
    """The text of the list that the first *pieces* make, copied once: it may be long."""
    if not count:
        return b"[]"
    parts: list[bytes | memoryview] = [b","] * (2 * count + 1)
    parts[1::2] = pieces[:count]
    parts[0], parts[-1] = b"[", b"]"
    return b"".join(parts)


Written = dict[str, tuple[int, int]]
"""By key of a state: the records that last changed it, and last did more than append to it.

A key whose changes are not all known is left out.
"""


def after_change(written: Written, changed: Mapping[str, bool], seq: int) -> Written:
    """*written* after record *seq* changed these keys (True: only appended)."""
    after = dict(written)
    for key, appended in changed.items():
        if not appended:
            after[key] = seq, seq
        elif key in after:
            after[key] = seq, after[key][1]
    return after


class Base(msgspec.Struct):
    """The state last saved, as the base for the next changes.

    `values` are frozen and compared by identity. Values that may change under our hands are in
    `live` as well, and are compared as text, or by their leaves.
    """

    values: dict[str, Any]
    live: dict[str, bytes | SeenList]
    size: int
    """Bytes of the state as JSON text."""
    changed: dict[str, bool] = {}
    """Keys that differ from the base before; True for a list that was only appended to."""

    def text_of(self, key: str) -> bytes:
        """The text of a value as it was when the state was saved."""
        live = self.live.get(key)
        if live is None:
            return _encode_member(key, self.values[key])
        return live.text() if isinstance(live, SeenList) else live


def _encode_member(key: str, value: Any, nature: Nature = _LIVE) -> bytes:
    """The text of a state's value, which may be text; a LIVE one is weighed anew."""
    if type(value) is Lazy or type(value) is Items:
        return value.text
    try:
        return encode(value, None if nature is _LIVE else nature)
    except EncodeError as error:
        at_path(error, key)
        raise


def whole(values: Mapping[str, Any], natures: Mapping[str, Nature]) -> tuple[bytes, Base]:
    """The state as one text, and the base that it makes."""
    live: dict[str, bytes | SeenList] = {}
    members = []
    for key, value in values.items():
        text = _encode_member(key, value, natures[key])
        if natures[key] is _LIVE:
            live[key] = SeenList.of(value) or text
        members.append(b"%b:%b" % (key_text(key), text))
    state = b"{%b}" % b",".join(members)
    return state, Base(dict(values), live, len(state))


def changes(
    base: Base, values: Mapping[str, Any], natures: Mapping[str, Nature]
) -> tuple[bytes | None, Base]:
    """The patch from *base* to *values* (None if nothing changed), and the next base.

    *natures* says of each value how it is compared: by identity, or as text if it is LIVE.
    """
    before = base.values
    if list(before) != list(values) and not same_order(before, values):
        text, after = whole(values, natures)
        after.changed = dict.fromkeys(values, False)
        return b'[{"op":"replace","path":"","value":%b}]' % text, after
    patch = Patch()
    changed: dict[str, bool] = {}
    count = len(before)
    for key in before:
        if key not in values:
            count -= 1
            changed[key] = False
            patch.remove(pointer(key), member_length(key, len(base.text_of(key)), count))
    live: dict[str, bytes | SeenList] = {}
    for key, value in values.items():
        nature = natures[key]
        if nature is not _LIVE and before.get(key, patch) is value and key not in base.live:
            continue
        made, grew = len(patch.operations), False
        if nature is _LIVE and (grown := _grown(base, key, value, patch)) is not None:
            live[key], grew = grown, True
        elif key not in before:
            text = _encode_member(key, value, nature)
            length = len(key_text(key)) + (2 if count else 1)
            patch.add(pointer(key), text, length)
            count += 1
            if nature is _LIVE:
                live[key] = SeenList.of(value) or text
        elif nature is _LIVE or key in base.live:
            text = _encode_member(key, value, nature)
            diff_texts(base.text_of(key), text, pointer(key), patch)
            if nature is _LIVE:
                live[key] = SeenList.of(value) or text
        else:
            grew = _diff_frozen(before[key], value, nature, pointer(key), patch)
        if len(patch.operations) > made:
            changed[key] = grew or _only_appends(patch.operations[made:], key)
    after = Base(dict(values), live, base.size + patch.growth, changed)
    return (b"[%b]" % b",".join(patch.operations) if patch.operations else None), after


def _only_appends(operations: list[bytes], key: str) -> bool:
    append = b'{"op":"add","path":%b,' % encode_tree(pointer(key) + "/-")
    return all(one.startswith(append) for one in operations)


def _grown(base: Base, key: str, value: Any, patch: Patch) -> SeenList | None:
    """Add a list's new items to *patch*; None if it must be compared in full."""
    seen = base.live.get(key)
    if type(seen) is not SeenList:
        return None
    try:
        grown = seen.grown(value)
        if grown is None:
            return None
        after, added = grown
    except EncodeError:  # raised again, with its whole path, when all of it is encoded
        return None
    for item in added:
        patch.add(pointer(key) + "/-", item, 1)
    return after


def _diff_frozen(old: Any, new: Any, nature: Nature, path: str, patch: Patch) -> bool:
    """Add to *patch* what changed in a value; True for a list that only grew."""
    if type(old) not in _TEXTS and type(new) not in _TEXTS:
        return diff_values(old, new, nature, path, patch)
    if type(old) is Items and type(new) is Items and new.grew_from(old):
        for place, item in enumerate(new.after(old.count), old.count):
            patch.add(path + "/-", item, 1 if place else 0)
        return True
    if type(old) in _TEXTS and type(new) in _TEXTS:
        diff_texts(old.text, new.text, path, patch)
        return False
    old = old.get() if type(old) in _TEXTS else old
    new = new.get() if type(new) in _TEXTS else new
    return diff_values(old, new, nature, path, patch)


class Patch:
    """Collects operations as text and counts their effect on a text's length.

    *encode* writes the values: the codec's own for frozen values, plain JSON for trees that hold
    type tags already.
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


def with_changes(
    known: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """*known* with the keys that changed from *before* to *after*.

    >>> with_changes({"a": 1, "b": 2}, {"b": 2, "c": 3}, {"b": 5})
    {'a': 1, 'b': 5}
    """
    kept = {key: one for key, one in known.items() if key in after or key not in before}
    changed = {key: one for key, one in after.items() if key not in before or before[key] != one}
    return {**kept, **changed}


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
    """True if removing keys and appending others turns the order of *old* into *new*."""
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
    """True if *new* is *old* with more items: its text less ``]``, then a comma."""
    end = len(old) - 1
    return new[end : end + 1] == b"," and new.startswith(old[:end])


def append_items(tail: bytes, path: str, comma: int, patch: Patch) -> None:
    """Add the items of *tail* to *patch*: their text and the closing bracket."""
    for item in _read_items(b"[" + tail):
        patch.add(path + "/-", bytes(item), comma)
        comma = 1


def diff_values(old: Any, new: Any, nature: Nature, path: str, patch: Patch) -> bool:
    """Add to *patch* what turns one frozen value into another, of that nature."""
    if type(old) is FrozenList and type(new) is FrozenList and new.lineage is old.lineage:
        known = len(old)
        if 0 <= len(new) - known <= _MANY:
            end = path + "/-"
            for place, item in enumerate(new[known:], known):
                patch.add(end, encode(item), 1 if place else 0)
            return True
    inner = Patch()
    _diff(old, new, path, inner)
    if len(inner.operations) > _MANY:
        text = encode(new, nature)
        if inner.longer_than(text):
            patch.replace(path, text, len(encode(old)))
            return False
    patch.join(inner)
    return False


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
