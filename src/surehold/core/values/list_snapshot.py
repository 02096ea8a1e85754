"""A list that may change under our hands, remembered by its leaves.

Most lists that agents keep hold flat dicts, such as messages: strings, numbers, flags. Those
leaves cannot change, so that a list is known again by looking at them, which takes a fraction of
the time that it takes to write it out as text and compare that.

>>> messages = [{"role": "user", "content": "hi"}]
>>> seen = SeenList.of(messages)
>>> messages.append({"role": "assistant", "content": "hello"})
>>> seen.added(messages)
[{'role': 'assistant', 'content': 'hello'}]
>>> messages[0]["content"] = "bye"
>>> print(seen.added(messages))
None
"""

from __future__ import annotations

from itertools import chain, compress
from typing import Any

import msgspec

from surehold.core.values.codec import encode, encode_tree

_LEAVES = frozenset([str, int, bool, type(None)])
"""Of these, two of the same type that are equal have the same text (zeros of float do not)."""
_WIDE = 1 << 63
"""Wider numbers are written with a tag."""
_STR = frozenset([str])
_DICT = frozenset([dict])


class _Leaves(msgspec.Struct, frozen=True):
    """The dicts of a list laid flat."""

    lengths: list[int]
    keys: list[str]
    kinds: list[type]
    values: list[Any]

    @classmethod
    def of(cls, items: list[dict[str, Any]]) -> _Leaves:
        values = list(chain.from_iterable(map(dict.values, items)))
        keys = list(chain.from_iterable(items))
        return cls(list(map(len, items)), keys, list(map(type, values)), values)


class SeenList(msgspec.Struct, frozen=True):
    """The content of a list when it was last compared."""

    flat: list[bool]
    """True for items that are dicts of leaves."""
    leaves: _Leaves
    others: dict[int, bytes]
    """The text of every other item."""

    @classmethod
    def of(cls, value: Any) -> SeenList | None:
        """Look at a list; None if *value* is none, or has too few dicts of leaves to gain."""
        if type(value) is not list or not value:
            return None
        flat = [
            type(item) is dict
            and _LEAVES.issuperset(map(type, item.values()))
            and _STR.issuperset(map(type, item))
            for item in value
        ]
        if sum(flat) * 2 < len(flat):
            return None
        others = {
            index: encode([item])[1:-1] for index, item in enumerate(value) if not flat[index]
        }
        return cls(flat, _Leaves.of(list(compress(value, flat))), others)

    def added(self, value: Any) -> list[Any] | None:
        """Return the items of *value* after the known ones; None if those have changed."""
        count = len(self.flat)
        if type(value) is not list or len(value) < count:
            return None
        items = list(compress(value, self.flat)) if self.others else value[:count]
        if not _DICT.issuperset(map(type, items)):
            return None
        known, leaves = self.leaves, _Leaves.of(items)
        # Types first: comparing values may call nothing but the leaves' own equality.
        same = (
            leaves.lengths == known.lengths
            and leaves.kinds == known.kinds
            and _STR.issuperset(map(type, leaves.keys))
            and leaves.keys == known.keys
            and leaves.values == known.values
        )
        if not same:
            return None
        for index, text in self.others.items():
            if encode([value[index]])[1:-1] != text:
                return None
        return value[count:]

    def grown(self, value: Any) -> tuple[SeenList, list[bytes]] | None:
        """Return the snapshot of *value* and the texts of the items that it has gained.

        None if it has to be compared in full.
        """
        added = self.added(value)
        if not added:
            return None if added is None else (self, [])
        new = SeenList.of(added)
        if new is None:
            return None
        count, ours, more = len(self.flat), self.leaves, new.leaves
        leaves = _Leaves(
            ours.lengths + more.lengths,
            ours.keys + more.keys,
            ours.kinds + more.kinds,
            ours.values + more.values,
        )
        others = self.others
        if new.others:
            others = {**others, **{count + index: text for index, text in new.others.items()}}
        texts = [new.others.get(index) or _text_of(item) for index, item in enumerate(added)]
        return SeenList(self.flat + new.flat, leaves, others), texts

    def text(self) -> bytes:
        """The list's text, as it was when it was looked at."""
        keys, values = iter(self.leaves.keys), iter(self.leaves.values)
        lengths = iter(self.leaves.lengths)
        texts = []
        for index, flat in enumerate(self.flat):
            if flat:
                made = {next(keys): next(values) for _ in range(next(lengths))}
                texts.append(_text_of(made))
            else:
                texts.append(self.others[index])
        return b"[%b]" % b",".join(texts)


def _text_of(item: dict[str, Any]) -> bytes:
    """The text of a dict of leaves as an item of a list."""
    narrow = all(-_WIDE <= leaf < _WIDE for leaf in item.values() if type(leaf) is int)
    if narrow and "$t" not in item:
        try:
            return encode_tree(item)
        except UnicodeEncodeError:  # half a surrogate pair
            pass
    return encode([item])[1:-1]
