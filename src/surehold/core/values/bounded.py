"""Bounded memory: the newest of many things are known, the others looked up again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def remember(known: OrderedDict[K, V], key: K, value: V, *, most: int) -> None:
    """Put *value* at the end of *known*, and forget the oldest beyond *most*.

    >>> known = OrderedDict(a=1, b=2)
    >>> remember(known, "a", 3, most=2); remember(known, "c", 4, most=2)
    >>> dict(known)
    {'a': 3, 'c': 4}
    """
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)
