"""LangGraph's checkpoints and writes as what stands in a journal, and back.

A thread is a run, a namespace a scope. Each channel is a key of the state; what else a checkpoint
says (versions, what each node has seen) stands beside the state, and of the metadata all that
plain JSON can say is in the header, where it can be searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key

from surehold.core.records import Header
from surehold.core.state import read_metadata
from surehold.core.values import FrozenDict, Items, Nature, encode_tree, weigh
from surehold.engine.journal import Note
from surehold.errors import EncodeError, UsageError
from surehold.integrations.langgraph.message_cache import value_of
from surehold.integrations.langgraph.types import encode_value

_KINDS = {"loop": "routine", "update": "manual"}
"""Checkpoint kinds by LangGraph source; any other source is its own kind."""


class Address(msgspec.Struct, frozen=True):
    """The thread, namespace and optional checkpoint that a LangGraph config names."""

    thread_id: str
    ns: str | None
    checkpoint_id: str | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Address:
        named = config.get("configurable") or {}
        if named.get("thread_id") is None:
            raise UsageError(
                "the config names no thread",
                hint='pass config={"configurable": {"thread_id": "..."}}',
            )
        return cls(
            str(named["thread_id"]), named.get("checkpoint_ns"), named.get("checkpoint_id") or None
        )

    @property
    def scope(self) -> str:
        return self.ns or ""

    def config(self, checkpoint_id: str | None = None) -> Any:
        """The config that names a checkpoint."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.scope,
                "checkpoint_id": checkpoint_id or self.checkpoint_id,
            }
        }


def kind_of(metadata: Mapping[str, Any]) -> str:
    """The kind of a checkpoint, from its LangGraph source."""
    source = str(metadata.get("source") or "loop")
    return _KINDS.get(source, source)


def split_metadata(metadata: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, Any]]:
    """Split *metadata* into what plain JSON can represent and the rest."""
    plain: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key, value in metadata.items():
        (plain if _is_plain(key, value) else rest)[key] = value
    return read_metadata(plain), rest


def _is_plain(key: str, value: Any) -> bool:
    try:
        if weigh(value) is not Nature.PLAIN:
            return False
        encode_tree({key: value})
    except (EncodeError, UnicodeEncodeError):
        return False
    return True


def beside(checkpoint: Mapping[str, Any], rest: Mapping[str, Any]) -> bytes:
    """Encode the checkpoint without its channel values, and *rest*."""
    said = {key: part for key, part in checkpoint.items() if key not in ("channel_values", "id")}
    return b'{"langgraph":{"checkpoint":%b,"metadata":%b}}' % (
        encode_value(said),
        encode_value(dict(rest)),
    )


class _Said(msgspec.Struct):
    checkpoint: msgspec.Raw
    metadata: msgspec.Raw


class _Beside(msgspec.Struct):
    langgraph: _Said | None = None


_read_beside = msgspec.json.Decoder(_Beside).decode


def read_beside(text: bytes) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Decode the output of `beside`; None if LangGraph did not save the checkpoint."""
    said = _read_beside(text).langgraph if text else None
    if said is None:
        return None
    return value_of(bytes(said.checkpoint)), value_of(bytes(said.metadata))


class Channels(dict[str, Any]):
    """Channel values that are still text until they are looked at, or copied."""

    __slots__ = ("_read",)

    def __init__(self, texts: Mapping[str, bytes | Items], read: Any) -> None:
        super().__init__({key: _Text(texts, key) for key in texts})
        self._read = read

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) is _Text:
            value = self._read(value.text)
            dict.__setitem__(self, key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (it would call itself)

    def __iter__(self) -> Iterator[str]:
        return dict.__iter__(self)  # its own, so that dict(channels) asks for each value

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def copy(self) -> dict[str, Any]:
        return {key: self[key] for key in self}

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return dict.pop(self, key, *default)

    def popitem(self) -> tuple[str, Any]:
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else dict.setdefault(self, key, default)

    def __eq__(self, other: object) -> bool:
        return self.copy() == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return self.copy() | dict(other)

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.copy(),)


class _Text:
    """A value's text, which may have to be put together."""

    __slots__ = ("_key", "_texts")

    def __init__(self, texts: Mapping[str, bytes | Items], key: str) -> None:
        self._texts, self._key = texts, key

    @property
    def text(self) -> bytes | Items:
        return self._texts[self._key]


def tuple_of(
    header: Header,
    channels: dict[str, Any],
    said: tuple[dict[str, Any], dict[str, Any]],
    writes: list[PendingWrite],
) -> CheckpointTuple:
    """A checkpoint as LangGraph knows it."""
    address = Address(header.run_id, header.scope, header.id)
    checkpoint: Any = {**said[0], "id": header.id, "channel_values": channels}
    metadata: Any = {**header.metadata, **said[1]}
    if "forked_from" in metadata and "step" not in metadata:  # by a manager, not by LangGraph
        metadata |= {"source": "fork", "step": header.step, "parents": {}}
    parent = address.config(header.parent) if header.parent else None
    return CheckpointTuple(
        config=address.config(),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=parent,
        pending_writes=writes,
    )


class Written(msgspec.Struct, omit_defaults=True):
    """The content of a note of writes: one task's channels and values, in order."""

    task: str
    path: str
    writes: list[tuple[str, msgspec.Raw]]
    places: list[int] | None = None
    """The place of each among the task's writes, where it is not that in the list."""


_read_written = msgspec.json.Decoder(Written).decode


def note_of(
    address: Address,
    writes: Sequence[tuple[str, bytes]],
    task: str,
    path: str,
    places: list[int] | None = None,
) -> Note:
    """The note that keeps writes to a checkpoint, which need not be there yet."""
    target = address.checkpoint_id
    if target is None:
        raise UsageError(
            "writes belong to a checkpoint, and the config names none",
            hint="pass the config that put() returned",
        )
    stored = [(channel, msgspec.Raw(text)) for channel, text in writes]
    content = Written(task, path, stored, places)
    return Note(kind="writes", content=content, scope=address.scope, parent=target, tags=(target,))


def tasks_writing(
    channel: str, notes: Iterable[tuple[int, bytes]], *, first: bool = False
) -> dict[str, int]:
    """The tasks that wrote to *channel*, and the seq of the last or first note."""
    found: dict[str, int] = {}
    for seq, text in notes:
        one = _read_written(text)
        if any(name == channel for name, _ in one.writes):
            found[one.task] = found.get(one.task, seq) if first else seq
    return found


def paths_of(notes: Iterable[bytes]) -> dict[str, str]:
    """The path of each task that wrote."""
    return {one.task: one.path for one in map(_read_written, notes)}


def fold(notes: Iterable[bytes]) -> list[tuple[str, str, bytes]]:
    """Task, channel and text of the effective writes, in the order they apply.

    Of ordinary writes of a task at the same place the first counts, of special ones the last.
    """
    found: dict[tuple[str, int], tuple[str, str, bytes]] = {}
    for note in notes:
        written = _read_written(note)
        places = written.places or range(len(written.writes))
        for place, (channel, text) in zip(places, written.writes, strict=True):
            key = (written.task, WRITES_IDX_MAP.get(channel, place))
            if key[1] < 0 or key not in found:
                found[key] = (written.path, channel, bytes(text))
    order = sorted(found, key=lambda key: writes_sort_key(found[key][0], *key))
    return [(key[0], found[key][1], found[key][2]) for key in order]
