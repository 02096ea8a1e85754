"""Changes to states: a keyframe's text with the operations of deltas applied.

>>> made = Rebuilt(b'{"step":1}')
>>> _ = made.apply(b'[{"op":"replace","path":"/step","value":2}]')
>>> made.texts()
{'step': b'2'}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from surehold.core.values.codec import decode, encode_tree, parse
from surehold.core.values.patch import list_text
from surehold.errors import CorruptError, DecodeError

_OPERATIONS = frozenset(["add", "replace", "remove"])
_LIST = ord("[")


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change: what was done, where, and the new value as text."""

    op: str
    path: str
    value: msgspec.Raw = msgspec.Raw()

    def content(self) -> Any:
        """The new value; None for a removal."""
        return decode(bytes(self.value)) if self.value else None


_read_operations = msgspec.json.Decoder(list[Operation]).decode
_read_mapping = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def operations(text: bytes | msgspec.Raw) -> list[Operation]:
    """The operations that a patch's text holds."""
    return _read_operations(text)


class Rebuilt:
    """A state in the making: a keyframe's text with deltas applied to it.

    Values stay text as long as they are only replaced or appended to, and a long text is copied
    once. Texts given as `msgspec.Raw` are views of the record's body. With *only*, other keys
    are passed over.
    """

    def __init__(self, state: bytes | msgspec.Raw, only: AbstractSet[str] | None = None) -> None:
        self._only = only
        self._slots = _slots_of(state, only)

    def apply(self, patch: bytes | msgspec.Raw) -> dict[str, bool]:
        """Carry out the operations of a patch's text, or raise a `CorruptError` half way.

        Returns the keys that were changed, True for a list that was only appended to.
        """
        at = "it cannot be read"
        changed: dict[str, bool] = {}
        try:
            for step in operations(patch):
                at = f"{step.op} {step.path}"
                self._carry_out(step)
                note_change(changed, step, self._slots)
        except (msgspec.MsgspecError, LookupError, ValueError, TypeError, DecodeError) as error:
            raise CorruptError(f"a delta does not fit the state it changes: {at}") from error
        return changed

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

    def keys(self) -> Iterable[str]:
        """The keys of the state, in order."""
        return self._slots

    def texts(self) -> dict[str, bytes]:
        """Each value's text, by key, in order."""
        return {key: slot.text() for key, slot in self._slots.items()}

    def texts_of_now(self) -> Mapping[str, bytes]:
        """The same texts as of now, even if built after the state has changed."""
        return _Texts({key: slot.now() for key, slot in self._slots.items()})


class _Texts(Mapping[str, bytes]):
    """The texts of a state at one moment; grown lists are joined when asked for."""

    __slots__ = ("_texts",)

    def __init__(self, texts: dict[str, bytes | tuple[list[bytes | memoryview], int]]) -> None:
        self._texts = texts

    def __getitem__(self, key: str) -> bytes:
        text = self._texts[key]
        if isinstance(text, tuple):
            text = self._texts[key] = list_text(*text)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _slots_of(state: bytes | msgspec.Raw, only: AbstractSet[str] | None) -> dict[str, _Slot]:
    values = _read_mapping(state).items()
    return {key: _Slot(raw) for key, raw in values if only is None or key in only}


class _Slot:
    """One value of a state in the making: text, pieces of a list's text, or a tree."""

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
                self._text = list_text(self._pieces, len(self._pieces))
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


def note_change(changed: dict[str, bool], step: Operation, keys: Iterable[str]) -> None:
    """Note the key that an operation changed, or all *keys*; True if it appended."""
    if not step.path:
        changed.update(dict.fromkeys(keys, False))
        return
    key, _, rest = step.path[1:].partition("/")
    key = _unescape(key)
    changed[key] = rest == "-" and step.op == "add" and changed.get(key, True)


def touches(step: Operation, path: str) -> bool:
    """Return True if an operation wrote the value at *path*, in it or around it.

    >>> touches(Operation("add", "/messages/-"), "/messages")
    True
    >>> touches(Operation("replace", "/plan"), "/plan/0/status")
    True
    """
    here, there = step.path + "/", path + "/"
    return here.startswith(there) or there.startswith(here)
