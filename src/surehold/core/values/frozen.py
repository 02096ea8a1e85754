"""Containers that cannot be changed, and the walk that copies values into them.

Freezing happens once, when a value enters a state. From then on an unchanged value is recognised
by identity, and a list that only grew by its lineage, so that a save costs what changed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from io import IOBase
from math import isfinite
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

from surehold.errors import EncodeError, UsageError

DEPTH_LIMIT = 100
"""Levels of containers in a value. It leaves room on the stack to read back all that is stored."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_SCALAR = -1
"""The height of a value that is not a container."""
_LONGEST_PATH = 200
_LONGEST_KEY = 60
_CYCLE_SHOWN = 24
_TOO_DEEP = f"nested more than {DEPTH_LIMIT} levels deep, or contains itself"


class Nature(IntEnum):
    """The encoding that a value needs."""

    PLAIN = 0
    """JSON says it exactly."""
    TAGGED = 1
    """Some of it needs a type tag."""
    LIVE = 2
    """It holds an object of a user's class, which may change under our hands."""


# Looking up a member of an enum takes longer than weighing a small value.
_PLAIN, _TAGGED = Nature.PLAIN, Nature.TAGGED


def _refuse(hint: str) -> Callable[..., NoReturn]:
    def mutator(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError("a state is frozen and cannot be changed in place", hint=hint)

    return mutator


_APPEND = _refuse('use state.append("key", item), or list(value) for a copy you may change')
_SET = _refuse('use state.set("key", value), or dict(value), list(value) or set(value) for a copy')


class FrozenList(list[Any]):
    """A list whose mutators raise. It knows which shorter lists it grew from.

    Called like a class it makes an ordinary list, as `dataclasses.asdict` and the like expect.
    """

    __slots__ = ("_claim", "height", "lineage", "nature")

    nature: Nature
    height: int
    """Number of levels of containers below it."""
    lineage: object
    """Shared by lists where one begins with the other."""
    _claim: list[None]

    def __new__(cls, items: Iterable[Any] = ()) -> list[Any]:  # type: ignore[misc]
        return list(items)

    @classmethod
    def of(cls, items: Iterable[Any], nature: Nature, height: int = 0) -> FrozenList:
        made = list.__new__(cls)
        list.__init__(made, items)
        made.nature = nature
        made.height = height
        made.lineage = made._claim = [None]
        return made

    def grown(self, items: FrozenList) -> FrozenList:
        """A new list of these items and then *items*."""
        made: FrozenList = list.__new__(FrozenList)
        list.__init__(made, self)
        list.extend(made, items)
        made.nature = self.nature if self.nature >= items.nature else items.nature
        made.height = self.height if self.height >= items.height else items.height
        made._claim = [None]
        # Two threads may grow one list at once. A pop is atomic, so only one of them continues
        # the lineage, and two lists of a lineage are always one the beginning of the other.
        try:
            self._claim.pop()
            made.lineage = self.lineage
        except IndexError:
            made.lineage = made._claim
        return made

    def grew_from(self, other: FrozenList) -> bool:
        """True if it is *other* with items added at the end, by how both were made."""
        return self.lineage is other.lineage and len(self) >= len(other)

    append = insert = extend = __iadd__ = _APPEND
    __init__ = __setitem__ = __delitem__ = __imul__ = _SET
    pop = remove = clear = sort = reverse = _SET

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict whose mutators raise. Called like a class it makes an ordinary dict."""

    __slots__ = ("height", "nature")

    nature: Nature
    height: int

    def __new__(cls, *args: Any, **items: Any) -> dict[Any, Any]:  # type: ignore[misc]
        return dict(*args, **items)

    @classmethod
    def of(cls, items: Any, nature: Nature, height: int = 0) -> FrozenDict:
        made = dict.__new__(cls)
        dict.update(made, items)
        made.nature = nature
        made.height = height
        return made

    __init__ = __setitem__ = __delitem__ = __ior__ = _SET
    pop = popitem = clear = update = setdefault = _SET

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {copy.deepcopy(k, memo): copy.deepcopy(v, memo) for k, v in self.items()}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenSet(set[Any]):
    """A set whose mutators raise. Called like a class it makes an ordinary set."""

    __slots__ = ("height", "nature")

    nature: Nature
    height: int

    def __new__(cls, items: Iterable[Any] = ()) -> set[Any]:  # type: ignore[misc]
        return set(items)

    @classmethod
    def of(cls, items: Iterable[Any], nature: Nature, height: int = 0) -> FrozenSet:
        made = set.__new__(cls)
        set.update(made, items)
        made.nature = nature
        made.height = height
        return made

    __init__ = add = discard = remove = pop = clear = update = _SET
    difference_update = intersection_update = symmetric_difference_update = _SET
    __ior__ = __iand__ = __isub__ = __ixor__ = _SET

    def __copy__(self) -> set[Any]:
        return set(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> set[Any]:
        return {copy.deepcopy(item, memo) for item in self}

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return set, (set(self),)


Leaf = Callable[[Any, int], tuple[Any, Nature] | None]
"""Freezes a value of another type at that depth: its frozen form and nature, or None."""


def freeze(value: Any, leaf: Leaf) -> tuple[Any, Nature]:
    """A frozen copy of *value* and its nature; an `EncodeError` names a bad path.

    >>> freeze({"a": [1, 2]}, lambda value, depth: None)
    ({'a': [1, 2]}, <Nature.PLAIN: 0>)
    """
    made, nature, _ = _freeze(value, leaf, 0)
    return made, nature


def _freeze(value: Any, leaf: Leaf, depth: int) -> tuple[Any, Nature, int]:
    """The frozen copy, its nature and its height."""
    kind = type(value)
    if kind is list:
        items, nature, height = _freeze_items(value, leaf, depth)
        return FrozenList.of(items, nature, height), nature, height
    if kind is str or kind is bool or value is None:
        return value, _PLAIN, _SCALAR
    if kind is int:
        return value, _PLAIN if _INT_MIN <= value <= _INT_MAX else _TAGGED, _SCALAR
    if kind is float:
        return value, _PLAIN if isfinite(value) else _TAGGED, _SCALAR
    if kind is FrozenList or kind is FrozenDict or kind is FrozenSet:
        if depth + value.height > DEPTH_LIMIT:
            raise too_deep()
        return value, value.nature, value.height
    if kind is dict:
        return _freeze_dict(value, leaf, depth)
    if kind is tuple or kind is set or kind is frozenset:
        items, nature, height = _freeze_items(value, leaf, depth)
        nature = max(nature, _TAGGED)
        made = FrozenSet.of(items, nature, height) if kind is set else kind(items)
        return made, nature, height
    taken = leaf(value, depth)
    if taken is None:
        raise unknown_type(value)
    return *taken, _SCALAR


def _freeze_dict(value: dict[Any, Any], leaf: Leaf, depth: int) -> tuple[Any, Nature, int]:
    if depth > DEPTH_LIMIT:
        raise too_deep()
    nature = _TAGGED if "$t" in value else _PLAIN
    highest = _SCALAR
    made = {}
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(item)
            place = key
            if type(key) is not str:
                place, inner, height = _freeze(key, leaf, depth + 1)
                nature = max(nature, _TAGGED, inner)
                highest = max(highest, height)
            if (
                kind is str
                or kind is bool
                or item is None
                or (kind is int and _INT_MIN <= item <= _INT_MAX)
            ):
                made[place] = item
                continue
            made[place], inner, height = _freeze(item, leaf, depth + 1)
            if inner > nature:
                nature = inner
            if height > highest:
                highest = height
    except EncodeError as error:
        at_path(error, key)
        raise
    return FrozenDict.of(made, nature, highest + 1), nature, highest + 1


def _freeze_items(value: Iterable[Any], leaf: Leaf, depth: int) -> tuple[list[Any], Nature, int]:
    if depth > DEPTH_LIMIT:
        raise too_deep()
    nature = _PLAIN
    highest = _SCALAR
    made: list[Any] = []
    try:
        for item in value:
            freeze_item = _freeze_dict if type(item) is dict else _freeze
            frozen, inner, height = freeze_item(item, leaf, depth + 1)
            made.append(frozen)
            if inner > nature:
                nature = inner
            if height > highest:
                highest = height
    except EncodeError as error:
        at_path(error, len(made))
        raise
    return made, nature, highest + 1


def at_path(error: EncodeError, key: object) -> None:
    """Note on the error that it is one container further in than it says, at *key*.

    Deep paths and long keys are cut: the beginning of a path says enough.
    """
    facts = error.facts
    path = str(facts.get("path", ""))
    part = f"[{_shown(key)}]" if isinstance(key, int) else _shown(key)
    if len(part) > _LONGEST_KEY:
        part = part[:_LONGEST_KEY] + "..."
    path = part + ("." if path and path[0] != "[" else "") + path
    what = facts.setdefault("what", error.message)
    longest = _LONGEST_PATH if what != _TOO_DEEP else _CYCLE_SHOWN
    if len(path) > longest:
        path = path[: longest - 3] + "..."
    facts["path"] = error.path = path
    error.message = f"{path}: {what}"
    error.args = (error.message,)


def _shown(key: object) -> str:
    try:
        return str(key)
    except Exception:  # a very long number, or a class whose __str__ fails
        return f"<{type(key).__name__}>"


def too_deep() -> EncodeError:
    """The error for a value that is nested too deep."""
    return EncodeError(_TOO_DEEP, hint="leave out what leads back to the value, or make it flat")


def unknown_type(value: Any) -> EncodeError:
    """The error for a value of a class that is not registered."""
    cls = type(value)
    if isinstance(value, Awaitable):
        return EncodeError(
            f"an unfinished {cls.__qualname__} cannot be stored",
            hint="write await before the call that returned it",
        )
    if isinstance(value, IOBase):
        return EncodeError(
            f"an open file ({cls.__qualname__}) cannot be stored",
            hint="store its path, or what its read() returns",
        )
    if isinstance(value, ModuleType):
        return EncodeError(
            f"the module {value.__name__} cannot be stored", hint="store its name, and import it"
        )
    if isinstance(value, Iterator):
        return EncodeError(
            f"an iterator ({cls.__qualname__}) cannot be stored", hint="store a list of its items"
        )
    if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | type):
        what = "class" if isinstance(value, type) else "function"
        return EncodeError(
            f"the {what} {value.__qualname__} cannot be stored",
            hint="store its name, or what it returns",
        )
    return EncodeError(
        f"{cls.__module__}.{cls.__qualname__} is not a type that can be stored",
        hint=_way_out(value),
    )


def _way_out(value: Any) -> str:
    """A way to store a value of a class that is not known, or what it holds."""
    cls = type(value)
    if dataclasses.is_dataclass(cls) or issubclass(cls, Enum) or hasattr(cls, "_fields"):
        if "<locals>" in cls.__qualname__:
            return f"define {cls.__qualname__} at the top of its module, or register it there"
        return f"surehold.register_type({cls.__qualname__})"
    for base in (memoryview, str, int, float, dict, list, tuple, set, frozenset, bytes):
        if isinstance(value, base):
            plain = "bytes" if base is memoryview else base.__name__
            return f"store {plain}(value)"
    if isinstance(value, Mapping):
        return "store dict(value)"
    if any(base.__module__.partition(".")[0] == "pandas" for base in cls.__mro__):
        return "store plain values, such as those of its to_dict() or tolist()"
    if isinstance(value, Collection):
        return "store list(value)"
    return (
        "store what makes it, and make it again where it is used; or"
        " surehold.register_type(type(value), encode=..., decode=...)"
    )


def nature_of(value: Any, leaf: Leaf, depth: int = 0) -> Nature:
    """Return the nature of *value* as `freeze` would, without copying lists and dicts."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return _PLAIN
    if kind is dict:
        return _nature_of_dict(value, leaf, depth)
    if kind is not list:
        return _freeze(value, leaf, depth)[1]
    if depth > DEPTH_LIMIT:
        raise too_deep()
    nature = _PLAIN
    index = 0
    try:
        for index, item in enumerate(value):  # noqa: B007 (it is used where an item fails)
            kind = type(item)
            if kind is str:
                continue
            inner = (_nature_of_dict if kind is dict else nature_of)(item, leaf, depth + 1)
            if inner > nature:
                nature = inner
    except EncodeError as error:
        at_path(error, index)
        raise
    return nature


def _nature_of_dict(value: dict[Any, Any], leaf: Leaf, depth: int) -> Nature:
    if depth > DEPTH_LIMIT:
        raise too_deep()
    nature = _TAGGED if "$t" in value else _PLAIN
    key: Any = None
    try:
        for key, item in value.items():
            kind = type(item)
            if type(key) is not str:
                inner = max(_TAGGED, nature_of(key, leaf, depth + 1))
                inner = max(inner, nature_of(item, leaf, depth + 1))
            elif (
                kind is str
                or kind is bool
                or item is None
                or (kind is int and _INT_MIN <= item <= _INT_MAX)
                or (kind is float and isfinite(item))
            ):
                continue
            elif kind is dict:
                inner = _nature_of_dict(item, leaf, depth + 1)
            else:
                inner = nature_of(item, leaf, depth + 1)
            if inner > nature:
                nature = inner
    except EncodeError as error:
        at_path(error, key)
        raise
    return nature


def thaw(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy of *value* in ordinary lists, dicts and sets; *leaf* copies all the rest."""
    kind = type(value)
    if kind is FrozenList or kind is list:
        return [thaw(item, leaf) for item in value]
    if kind is FrozenDict or kind is dict:
        return {thaw(key, leaf): thaw(item, leaf) for key, item in value.items()}
    if kind is tuple or kind is frozenset:
        return kind(thaw(item, leaf) for item in value)
    if kind is FrozenSet or kind is set:
        return {thaw(item, leaf) for item in value}
    return leaf(value)
