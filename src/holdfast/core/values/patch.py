"""Two states -> what changed, and back.

Changes are operations shaped like JSON Patch (RFC 6902): ``add``, ``replace`` and ``remove`` with
JSON Pointer paths, an append being an ``add`` at ``/-``. They are made as text, because that is
how they are stored, and only for what differs: an unchanged value is recognised by identity, a
list that only grew by its lineage or by its old text being a prefix of the new.

>>> from holdfast.core.values.frozen import Nature
>>> state, base = whole({"step": 1}, {"step": Nature.PLAIN})
>>> patch, base = changes(base, {"step": 2}, {"step": Nature.PLAIN})
>>> patch
b'[{"op":"replace","path":"/step","value":2}]'
>>> made = Rebuilt(state)
>>> made.apply(patch)
>>> made.texts()
{'step': b'2'}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Any

import msgspec

from holdfast.core.values.codec import decode, encode, encode_tree, parse
from holdfast.core.values.diff import (
    Patch,
    append_items,
    diff_texts,
    diff_values,
    key_text,
    member_length,
    pointer,
    same_order,
)
from holdfast.core.values.frozen import Nature, at_path
from holdfast.core.values.list_snapshot import SeenList
from holdfast.errors import CorruptError, DecodeError, EncodeError

LAZY_BYTES = 1 << 16
"""A loaded value whose text is longer than this is decoded when it is first looked at."""

_OPERATIONS = frozenset(["add", "replace", "remove"])
_LIVE = Nature.LIVE
_publishing = Lock()


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
    """A list that is still text, item by item; longer ones share what they have in common.

    *texts* is only ever added to. The list is its first *count* items.
    """

    __slots__ = ("count", "texts")

    def __init__(self, texts: list[bytes], count: int) -> None:
        self.texts = texts
        self.count = count

    @property
    def text(self) -> bytes:
        """The text of the whole list."""
        return _list_text(self.texts, self.count)

    def get(self) -> Any:
        """The value, frozen."""
        return decode(self.text, frozen=True)

    def grew_from(self, other: Items) -> bool:
        """True if it is *other* with items added at the end, by how both were made."""
        return self.texts is other.texts and self.count >= other.count

    def after(self, count: int) -> list[bytes]:
        """The texts of the items that follow the first so many."""
        return self.texts[count : self.count]


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: what was done, where, and the new value as text."""

    op: str
    path: str
    value: msgspec.Raw = msgspec.Raw()

    def content(self) -> Any:
        """The new value; None for a removal."""
        return decode(bytes(self.value)) if self.value else None


_TEXTS = (Lazy, Items)
_LIST = ord("[")

_read_operations = msgspec.json.Decoder(list[Operation]).decode
_read_mapping = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def operations(text: bytes | msgspec.Raw) -> list[Operation]:
    """The operations that a patch's text holds."""
    return _read_operations(text)


class Base(msgspec.Struct):
    """The state last saved, as the base for the next changes.

    `values` are frozen and compared by identity. Values that may change under our hands are in
    `live` as well, and are compared as text, or by their leaves.
    """

    values: dict[str, Any]
    live: dict[str, bytes | SeenList]
    size: int
    """Bytes of the state as JSON text."""

    def text_of(self, key: str) -> bytes:
        """The text of a value as it was when the state was saved."""
        live = self.live.get(key)
        if live is None:
            return _encode_member(key, self.values[key])
        return live.text() if isinstance(live, SeenList) else live


def _encode_member(key: str, value: Any, nature: Nature = _LIVE) -> bytes:
    """The text of a state's value, which may still be text; a LIVE one is weighed anew."""
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
        return b'[{"op":"replace","path":"","value":%b}]' % text, after
    patch = Patch()
    count = len(before)
    for key in before:
        if key not in values:
            count -= 1
            patch.remove(pointer(key), member_length(key, len(base.text_of(key)), count))
    live: dict[str, bytes | SeenList] = {}
    for key, value in values.items():
        nature = natures[key]
        if nature is _LIVE and (grown := _grown(base, key, value, patch)) is not None:
            live[key] = grown
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
        elif before[key] is not value:
            _diff_frozen(before[key], value, nature, pointer(key), patch)
    after = Base(dict(values), live, base.size + patch.growth)
    return (patch.text() if patch.operations else None), after


def _grown(base: Base, key: str, value: Any, patch: Patch) -> SeenList | None:
    """Add to *patch* the items that a list has gained; None if it must be compared in full."""
    seen = base.live.get(key)
    if not isinstance(seen, SeenList):
        return None
    try:
        added = seen.added(value)
        after = None if added is None else seen.and_then(added)
        if not added or after is None:
            return after
        append_items(encode(added)[1:], pointer(key), 1, patch)
    except EncodeError:  # raised again, with its whole path, when all of it is encoded
        return None
    return after


def _diff_frozen(old: Any, new: Any, nature: Nature, path: str, patch: Patch) -> None:
    if type(old) is Items and type(new) is Items and new.grew_from(old):
        for place, item in enumerate(new.after(old.count), old.count):
            patch.add(path + "/-", item, 1 if place else 0)
        return
    if type(old) in _TEXTS and type(new) in _TEXTS:
        diff_texts(old.text, new.text, path, patch)
        return
    old = old.get() if type(old) in _TEXTS else old
    new = new.get() if type(new) in _TEXTS else new
    diff_values(old, new, nature, path, patch)


class Rebuilt:
    """A state in the making: a keyframe's text with deltas applied to it.

    Values stay text as long as they are only replaced or appended to, and a long text is copied
    once. Texts given as `msgspec.Raw` are views of the record's body. With *only*, other keys
    are passed over.
    """

    def __init__(self, state: bytes | msgspec.Raw, only: AbstractSet[str] | None = None) -> None:
        self._only = only
        self._slots = _slots_of(state, only)

    def apply(self, patch: bytes | msgspec.Raw) -> None:
        """Carry out the operations of a patch's text, or raise a `CorruptError` half way."""
        at = "it cannot be read"
        try:
            for step in operations(patch):
                at = f"{step.op} {step.path}"
                self._carry_out(step)
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError, DecodeError) as error:
            raise CorruptError(f"a delta does not fit the state it changes: {at}") from error

    def _carry_out(self, step: Operation) -> None:
        if step.op not in _OPERATIONS:
            raise ValueError(step.op)
        if step.path == "":
            self._slots = _slots_of(step.value, self._only)
            return
        key, inside, rest = step.path[1:].partition("/")
        key = _unescape(key)
        if self._only is not None and key not in self._only:
            return
        if inside:
            self._slots[key].change(step, rest)
        elif step.op == "remove":
            del self._slots[key]
        elif (step.op == "replace") is (key in self._slots):
            self._slots[key] = _Slot(step.value)
        else:
            raise KeyError(key)

    def texts(self) -> dict[str, bytes]:
        """Each value's text, by key, in order."""
        return {key: slot.text() for key, slot in self._slots.items()}

    def texts_of_now(self) -> Mapping[str, bytes]:
        """The same texts as of now, even if built after the state has changed."""
        return _Texts({key: slot.now() for key, slot in self._slots.items()})


def _list_text(pieces: Sequence[bytes | memoryview], count: int) -> bytes:
    """The text of the list that the first so many *pieces* make, copied once: it may be long."""
    if not count:
        return b"[]"
    parts: list[bytes | memoryview] = [b","] * (2 * count + 1)
    parts[1::2] = pieces[:count]
    parts[0], parts[-1] = b"[", b"]"
    return b"".join(parts)


class _Texts(Mapping[str, bytes]):
    """The texts of a state at one moment; lists that grew are put together when asked for."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, bytes | tuple[list[bytes | memoryview], int]]) -> None:
        self._texts = texts

    def __getitem__(self, key: str) -> bytes:
        text = self._texts[key]
        if isinstance(text, tuple):
            text = self._texts[key] = _list_text(*text)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _slots_of(state: bytes | msgspec.Raw, only: AbstractSet[str] | None) -> dict[str, _Slot]:
    values = _read_mapping(state).items()
    return {key: _Slot(raw) for key, raw in values if only is None or key in only}


class _Slot:
    """One value of a state in the making: text, the pieces of a list's text, or a tree."""

    __slots__ = ("_pieces", "_text", "_tree")

    def __init__(self, text: msgspec.Raw) -> None:
        self._text: bytes | msgspec.Raw | None = text
        self._pieces: list[bytes | memoryview] = []
        self._tree: Any = None

    def now(self) -> bytes | tuple[list[bytes | memoryview], int]:
        """Its text, or how many of the pieces, of which there may be more later, make it."""
        if self._text is None and self._pieces:
            return self._pieces, len(self._pieces)
        return self.text()

    def text(self) -> bytes:
        if self._text is None:
            if self._pieces:
                self._text = _list_text(self._pieces, len(self._pieces))
                self._pieces = []
            else:
                self._text = encode_tree(self._tree)
                self._tree = None
        if type(self._text) is msgspec.Raw:
            self._text = bytes(self._text)
        return self._text

    def _in_pieces(self) -> bool:
        """Return whether it is the text of a list in pieces, splitting it if needed."""
        if self._text is not None:
            text = memoryview(self._text)
            if not text or text[0] != _LIST:
                return False
            self._pieces = [text[1:-1]] if len(text) > 2 else []
            self._text = None
            return True
        return bool(self._pieces)

    def change(self, step: Operation, rest: str) -> None:
        if rest == "-" and step.op == "add" and self._in_pieces():
            self._pieces.append(bytes(step.value))
            return
        if self._text is not None or self._pieces:
            self._tree = parse(self.text())
            self._text = None
        *way, last = (_unescape(part) for part in rest.split("/"))
        place = self._tree
        for part in way:
            place = place[_index(part, len(place))] if isinstance(place, list) else place[part]
        value = parse(bytes(step.value)) if step.value else None
        if isinstance(place, list):
            _change_list(place, last, step.op, value)
        elif step.op == "remove":
            del place[last]
        elif (step.op == "replace") is (last in place):
            place[last] = value
        else:
            raise KeyError(last)


def _change_list(place: list[Any], last: str, op: str, value: Any) -> None:
    if op == "add":
        end = len(place)
        place.insert(end if last == "-" else _index(last, end + 1), value)
    elif op == "remove":
        del place[_index(last, len(place))]
    else:
        place[_index(last, len(place))] = value


def _index(part: str, end: int) -> int:
    if not part.isdecimal() or int(part) >= end:
        raise IndexError(part)
    return int(part)


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def touches(step: Operation, path: str) -> bool:
    """Return whether an operation wrote the value at *path*, or one inside or around it.

    >>> touches(Operation("add", "/messages/-"), "/messages")
    True
    >>> touches(Operation("replace", "/plan"), "/plan/0/status")
    True
    """
    here, there = step.path + "/", path + "/"
    return here.startswith(there) or there.startswith(here)
