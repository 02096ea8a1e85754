"""Containers that cannot be changed, and the walk that copies values into them.

Freezing happens once, when a value enters a state. From then on an unchanged value is recognised
by identity, and a list that only grew by its lineage, so that a save costs what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from math import isfinite
from typing import Any, NoReturn

from holdfast.errors import EncodeError, UsageError

__all__ = [
    "DEPTH_LIMIT",
    "FrozenDict",
    "FrozenList",
    "FrozenSet",
    "Nature",
    "freeze",
    "nature_of",
    "thaw",
]

DEPTH_LIMIT = 200
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


class Nature(IntEnum):
    """What a value takes to be stored."""

    PLAIN = 0
    """JSON says it exactly."""
    TAGGED = 1
    """Some of it needs a type tag."""
    LIVE = 2
    """It holds an object of a user's class, which may change under our hands."""


def _refuse(hint: str) -> Callable[..., NoReturn]:
    def mutator(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError("a state is frozen and cannot be changed in place", hint=hint)

    return mutator


_APPEND = _refuse('use state.append("key", item), or list(value) for a copy you may change')
_SET = _refuse('use state.set("key", value), or dict(value) or list(value) for a copy')


class FrozenList(list[Any]):
    """A list whose mutators raise. It knows which shorter lists it grew from."""

    __slots__ = ("_lineage", "nature")

    nature: Nature
    _lineage: list[int]

    @classmethod
    def of(cls, items: Iterable[Any], nature: Nature) -> FrozenList:
        made = cls(items)
        made.nature = nature
        made._lineage = [len(made)]
        return made

    def grown(self, items: Iterable[Any], nature: Nature) -> FrozenList:
        """A new list of these items and then *items*."""
        made = FrozenList(self)
        list.extend(made, items)
        made.nature = max(self.nature, nature)
        if self._lineage[0] == len(self):
            made._lineage = self._lineage
            made._lineage[0] = len(made)
        else:
            made._lineage = [len(made)]
        return made

    def grew_from(self, other: FrozenList) -> bool:
        """True if it is *other* with items added at the end, by how both were made."""
        return self._lineage is other._lineage and len(self) >= len(other)

    append = insert = extend = __iadd__ = _APPEND
    __setitem__ = __delitem__ = __imul__ = _SET
    pop = remove = clear = sort = reverse = _SET

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict whose mutators raise."""

    __slots__ = ("nature",)

    nature: Nature

    @classmethod
    def of(cls, items: Any, nature: Nature) -> FrozenDict:
        made = cls(items)
        made.nature = nature
        return made

    __setitem__ = __delitem__ = __ior__ = _SET
    pop = popitem = clear = update = setdefault = _SET

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return thaw(self)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenSet(set[Any]):
    """A set whose mutators raise."""

    __slots__ = ("nature",)

    nature: Nature

    @classmethod
    def of(cls, items: Iterable[Any], nature: Nature) -> FrozenSet:
        made = cls(items)
        made.nature = nature
        return made

    add = discard = remove = pop = clear = update = _SET
    difference_update = intersection_update = symmetric_difference_update = _SET
    __ior__ = __iand__ = __isub__ = __ixor__ = _SET

    def __copy__(self) -> set[Any]:
        return set(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> set[Any]:
        return set(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return set, (set(self),)


Leaf = Callable[[Any], tuple[Any, Nature] | None]
"""How a value of any other type is taken in: its frozen form and nature, or None for unknown."""


def freeze(value: Any, leaf: Leaf, depth: int = 0) -> tuple[Any, Nature]:
    """A frozen copy of *value* and its nature; an `EncodeError` names the path to what cannot be.

    >>> freeze({"a": [1, 2]}, lambda value: None)
    ({'a': [1, 2]}, <Nature.PLAIN: 0>)
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value, Nature.PLAIN
    if kind is int:
        return value, Nature.PLAIN if _INT_MIN <= value <= _INT_MAX else Nature.TAGGED
    if kind is float:
        return value, Nature.PLAIN if isfinite(value) else Nature.TAGGED
    if kind is FrozenList or kind is FrozenDict or kind is FrozenSet:
        return value, value.nature
    if depth > DEPTH_LIMIT:
        raise EncodeError(f"nested more than {DEPTH_LIMIT} levels deep, or contains itself", path="")
    if kind is dict:
        return _freeze_dict(value, leaf, depth)
    if kind is list or kind is tuple:
        items, nature = _freeze_items(value, leaf, depth)
        if kind is list:
            return FrozenList.of(items, nature), nature
        return tuple(items), max(nature, Nature.TAGGED)
    if kind is set or kind is frozenset:
        items, nature = _freeze_items(value, leaf, depth)
        nature = max(nature, Nature.TAGGED)
        return (FrozenSet.of(items, nature) if kind is set else frozenset(items)), nature
    taken = leaf(value)
    if taken is None:
        raise unknown_type(value)
    return taken


def _freeze_dict(value: dict[Any, Any], leaf: Leaf, depth: int) -> tuple[FrozenDict, Nature]:
    nature = Nature.TAGGED if "$t" in value else Nature.PLAIN
    made = FrozenDict()
    put = dict.__setitem__
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(item)
            if type(key) is not str:
                put(made, freeze(key, leaf, depth + 1)[0], freeze(item, leaf, depth + 1)[0])
                nature = max(nature, Nature.TAGGED, nature_of(item, leaf, depth + 1))
            elif kind is str or kind is bool or item is None:
                put(made, key, item)
            else:
                frozen, inner = freeze(item, leaf, depth + 1)
                put(made, key, frozen)
                if inner > nature:
                    nature = inner
    except EncodeError as error:
        raise at_path(error, key) from None
    made.nature = nature
    return made, nature


def _freeze_items(value: Iterable[Any], leaf: Leaf, depth: int) -> tuple[list[Any], Nature]:
    nature = Nature.PLAIN
    made: list[Any] = []
    try:
        for item in value:
            frozen, inner = freeze(item, leaf, depth + 1)
            made.append(frozen)
            if inner > nature:
                nature = inner
    except EncodeError as error:
        raise at_path(error, len(made)) from None
    return made, nature


def at_path(error: EncodeError, key: object) -> EncodeError:
    """The same error, one container further out. Deep paths are cut: their end says enough."""
    path = str(error.facts.get("path", ""))
    part = f"[{key}]" if isinstance(key, int) else f".{key}"
    if len(path) < 200:
        path = part + path
    plain = str(error.facts.get("plain", error.message))
    return EncodeError(f"{path.lstrip('.')}: {plain}", hint=error.hint, path=path, plain=plain)


def unknown_type(value: Any) -> EncodeError:
    """The error for a value of a class that the codec has not been told of."""
    cls = type(value)
    return EncodeError(
        f"{cls.__module__}.{cls.__qualname__} is not a type that can be stored",
        hint=f"holdfast.register_type({cls.__qualname__}), or store plain values of it",
        path="",
    )


def nature_of(value: Any, leaf: Leaf, depth: int = 0) -> Nature:
    """What `freeze` would say of *value*'s nature, without copying anything."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return Nature.PLAIN
    if kind is dict and depth <= DEPTH_LIMIT:
        return _nature_of_dict(value, leaf, depth)
    if kind is not list or depth > DEPTH_LIMIT:
        return freeze(value, leaf, depth)[1]
    nature = Nature.PLAIN
    index = 0
    try:
        for index, item in enumerate(value):
            kind = type(item)
            if kind is str:
                continue
            inner = (_nature_of_dict if kind is dict else nature_of)(item, leaf, depth + 1)
            if inner > nature:
                nature = inner
    except EncodeError as error:
        raise at_path(error, index) from None
    return nature


def _nature_of_dict(value: dict[Any, Any], leaf: Leaf, depth: int) -> Nature:
    nature = Nature.TAGGED if "$t" in value else Nature.PLAIN
    if depth > DEPTH_LIMIT:
        freeze(value, leaf, depth)
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(item)
            if type(key) is str and (
                kind is str
                or kind is bool
                or item is None
                or (kind is int and _INT_MIN <= item <= _INT_MAX)
            ):
                continue
            inner = nature_of(item, leaf, depth + 1)
            if type(key) is not str:
                nature_of(key, leaf, depth + 1)
                inner = max(inner, Nature.TAGGED)
            if inner > nature:
                nature = inner
    except EncodeError as error:
        raise at_path(error, key) from None
    return nature


def thaw(value: Any) -> Any:
    """A copy of *value* made of ordinary lists, dicts and sets."""
    kind = type(value)
    if kind is FrozenList or kind is list:
        return [thaw(item) for item in value]
    if kind is FrozenDict or kind is dict:
        return {key: thaw(item) for key, item in value.items()}
    if kind is tuple:
        return tuple([thaw(item) for item in value])
    if kind is FrozenSet:
        return set(value)
    return value
