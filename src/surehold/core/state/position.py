"""The position of a state in its run, and its facts besides the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from surehold.core.records import read_status
from surehold.core.values import FrozenDict, Nature, encode_tree, take_in
from surehold.errors import EncodeError, UsageError

_LAST_STEP = (1 << 63) - 1
_LONGEST_INDEXED = 256


NO_METADATA = FrozenDict.of({}, Nature.PLAIN)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a state in its run."""

    run_id: str
    name: str = ""
    scope: str = ""
    step: int = 0
    node: str | None = None
    kind: str = "routine"
    status: str = "running"
    tags: tuple[str, ...] = ()
    metadata: FrozenDict = NO_METADATA


class Lineage:
    """The last checkpoint of a state and of those made from it, and their observer."""

    __slots__ = ("checkpoint_id", "observer")

    def __init__(
        self, checkpoint_id: str | None = None, observer: Callable[..., None] | None = None
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.observer = observer
        """Told of the states that are made: type of the event, state, and facts."""


class Secrets(Mapping[str, Any]):
    """Values that travel with a state and are never saved or shown.

    >>> Secrets({"api_key": "sk-123"})
    <Secrets api_key>
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<Secrets {', '.join(map(str, self._values))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise UsageError(
            "secrets cannot be pickled", hint="pass them to the other process another way"
        )


def read_place(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Place` as they are stored; a `UsageError` for one that cannot be."""
    made = dict(given)
    for field, value in given.items():
        if field == "step":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise UsageError(f"step is {value!r}", hint="give a whole number from 0")
            if value > _LAST_STEP:
                raise UsageError(f"step is {value}", hint=f"{_LAST_STEP} is the limit")
        elif field == "tags":
            made[field] = read_tags(value)
        elif field == "metadata":
            made[field] = read_metadata(value)
        elif field != "node" or value is not None:
            _check_text(field, value)
            if field == "status":
                made[field] = read_status(value)
    return made


def _check_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{field} must be a string, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{field} is not valid Unicode: {value!r}") from None


def read_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags as they are stored: each a non-empty string, once."""
    if isinstance(tags, str):
        raise UsageError("tags is one string", hint=f"give a list: [{tags!r}]")
    if not isinstance(tags, Iterable):
        raise UsageError(f"tags must be a list of strings, not {type(tags).__name__}")
    made = list(tags)
    for tag in made:
        _check_text("a tag", tag)
        if not tag:
            raise UsageError("a tag is empty", hint="give it at least one character")
    return tuple(dict.fromkeys(made))


def indexed_metadata(metadata: Mapping[Any, Any]) -> FrozenDict:
    """Return the part of an agent's metadata that queries find: short plain values.

    >>> dict(indexed_metadata({"customer": "acme", "n": 3, "trace": [1], "note": "x" * 999}))
    {'customer': 'acme', 'n': 3}
    """
    if not isinstance(metadata, Mapping):
        raise UsageError(f"metadata must be a mapping, not {type(metadata).__name__}")
    plain = {
        key: value
        for key, value in metadata.items()
        if isinstance(key, str)
        and (value is None or type(value) in (bool, int, float, str))
        and not (isinstance(value, str) and len(value) > _LONGEST_INDEXED)
    }
    try:
        return read_metadata(plain)
    except EncodeError:
        return read_metadata({})


def read_metadata(metadata: Mapping[str, Any]) -> FrozenDict:
    """Metadata as it is stored: string keys and values that JSON says exactly."""
    if not isinstance(metadata, Mapping):
        raise UsageError(f"metadata must be a mapping, not {type(metadata).__name__}")
    made: FrozenDict = metadata if isinstance(metadata, FrozenDict) else take_in(dict(metadata))[0]
    if made.nature is Nature.PLAIN:
        try:
            encode_tree(made)
            return made
        except UnicodeEncodeError:  # half a surrogate pair: the nature does not tell
            pass
    raise EncodeError(
        "metadata holds a value that JSON cannot represent",
        hint="use strings, numbers, booleans, None, and lists and dicts of them",
    )
