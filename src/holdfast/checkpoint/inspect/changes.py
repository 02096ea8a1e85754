"""Changes in a journal: history, blame, differences, the tree of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Loaded, Reader, Saveable, read_body
from holdfast.core.records import Header, Record
from holdfast.core.values import (
    Base,
    Lazy,
    Nature,
    Operation,
    changes,
    decode,
    operations,
    touches,
)
from holdfast.errors import NotFoundError, UsageError
from holdfast.storage.base import RecordQuery, RunInfo

_AT_A_TIME = 256


class CheckpointMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its state."""

    checkpoint_id: str
    run_id: str
    name: str
    scope: str
    seq: int
    step: int
    node: str | None
    kind: str
    status: str
    timestamp: datetime
    size_bytes: int
    """Bytes of the whole state as JSON text."""
    stored_bytes: int
    """Bytes that this checkpoint takes in the storage."""
    parent_checkpoint_id: str | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]

    @property
    def agent_id(self) -> str:
        """The name of its run, as agents call it."""
        return self.name

    @property
    def step_number(self) -> int:
        """Its step, as agents call it."""
        return self.step


def metadata_of(header: Header) -> CheckpointMetadata:
    """Return a header as a listing shows it."""
    return CheckpointMetadata(
        checkpoint_id=header.id,
        run_id=header.run_id,
        name=header.name,
        scope=header.scope,
        seq=header.seq,
        step=header.step,
        node=header.node,
        kind=header.kind,
        status=header.status,
        timestamp=header.saved_at,
        size_bytes=header.size,
        stored_bytes=header.stored,
        parent_checkpoint_id=header.parent,
        tags=header.tags,
        metadata=dict(header.metadata),
    )


class Change(msgspec.Struct, frozen=True):
    """One change: `op` is add, replace or remove; `path` a JSON Pointer."""

    op: str
    path: str
    value: Any = None


class HistoryEntry(msgspec.Struct, frozen=True):
    """A checkpoint of a run, its changes and its state."""

    checkpoint: CheckpointMetadata
    changes: tuple[Change, ...]
    load: Callable[[], Loaded]

    @property
    def state(self) -> Saveable:
        """The state, loaded on access."""
        return self.load().state()


def _changes(steps: list[Operation]) -> tuple[Change, ...]:
    return tuple(Change(step.op, step.path, step.content()) for step in steps)


def history(reader: Reader, run: RunInfo, scope: str) -> Iterator[HistoryEntry]:
    """Yield every visible checkpoint of a run's scope, oldest first."""
    query = RecordQuery(run_id=run.run_id, scope=scope)
    for header in reversed(list(reader.storage.headers(query))):
        changed = _own_changes(reader, header)
        yield HistoryEntry(metadata_of(header), changed, partial(reader.load, header))


def _own_changes(reader: Reader, header: Header) -> tuple[Change, ...]:
    """Return the changes of a checkpoint; the first one adds all its values."""
    for record in reader.storage.read(header.run_id, first=header.seq, last=header.seq):
        return changes_in(reader, record)
    raise NotFoundError(f"record {header.seq} of run {header.run_id!r} is missing")


def changes_in(reader: Reader, record: Record) -> tuple[Change, ...]:
    """Return the changes of the checkpoint in *record*."""
    body = read_body(reader.sealer.open(record), record.header)
    steps = operations(bytes(body.patch))
    if record.header.frame == "key" and not steps:
        state = msgspec.json.decode(body.state, type=dict[str, msgspec.Raw])
        return tuple(Change("add", f"/{key}", decode(bytes(v))) for key, v in state.items())
    return _changes(steps)


def blame(reader: Reader, run: RunInfo, path: str, scope: str) -> CheckpointMetadata | None:
    """Return the newest checkpoint that wrote the value at *path*; None if none did."""
    pointer = _pointer_of(path)
    lengths = _Lengths(reader, pointer)
    for header, steps in _newest_first(reader, run, scope):
        if any(touches(step, pointer) for step in steps):
            return metadata_of(header)
        if lengths.appended(header, steps):
            return metadata_of(header)
    return None


def _newest_first(
    reader: Reader, run: RunInfo, scope: str
) -> Iterator[tuple[Header, list[Operation]]]:
    """Yield each visible checkpoint with its operations, reading many records at a time."""
    before: str | None = None
    while True:
        query = RecordQuery(run_id=run.run_id, scope=scope, before=before, limit=_AT_A_TIME)
        some = list(reader.storage.headers(query))
        if not some:
            return
        before = some[-1].id
        wanted = {header.seq for header in some}
        records = reader.storage.read(run.run_id, first=min(wanted), last=max(wanted))
        found = {one.header.seq: one for one in records if one.header.seq in wanted}
        for header in some:
            if header.seq in found:
                yield header, _operations_in(reader, found[header.seq])


def _operations_in(reader: Reader, record: Record) -> list[Operation]:
    """The operations of a checkpoint, without their values."""
    body = read_body(reader.sealer.open(record), record.header)
    steps = operations(bytes(body.patch))
    if record.header.frame == "key" and not steps:
        state = msgspec.json.decode(body.state, type=dict[str, msgspec.Raw])
        return [Operation("add", f"/{key}") for key in state]
    return steps


class _Lengths:
    """Lengths of the lists along a pointer, followed from newer checkpoints to older ones."""

    def __init__(self, reader: Reader, pointer: str) -> None:
        self._reader = reader
        self._pointer = pointer
        self._lengths: dict[str, int] = {}
        self._next: str | None = None

    def appended(self, header: Header, steps: list[Operation]) -> bool:
        """Return whether a checkpoint appended the value at the pointer, or a value around it."""
        if self._next != header.id:
            self._lengths.clear()
        self._next = header.parent
        grew: dict[str, int] = {}
        for step in steps:
            if step.path.endswith("/-"):
                grew[step.path[:-2]] = grew.get(step.path[:-2], 0) + 1
        for place, count in grew.items():
            index = self._pointer.removeprefix(f"{place}/").partition("/")[0]
            if not self._pointer.startswith(f"{place}/") or not index.isdecimal():
                continue
            if place not in self._lengths:
                self._lengths[place] = len(_value_at(self._reader.load(header), place))
            length = self._lengths[place]
            self._lengths[place] = length - count
            if length - count <= int(index) < length:
                return True
        for place in [*self._lengths]:
            if any(_resizes(step, place) for step in steps):
                del self._lengths[place]
        return False


def _resizes(change: Operation, place: str) -> bool:
    """Return whether a change other than an append may alter the length of the list at *place*."""
    if change.path == f"{place}/-":
        return False
    around = place == change.path or place.startswith(f"{change.path}/")
    inside = change.path.rpartition("/")[0] == place and change.op != "replace"
    return around or inside


def _value_at(loaded: Loaded, place: str) -> Any:
    first, *parts = (part.replace("~1", "/").replace("~0", "~") for part in place[1:].split("/"))
    value = decode(loaded.texts[first])
    for part in parts:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def changes_between(a: Loaded, b: Loaded) -> tuple[Change, ...]:
    """Return the changes from one state to another, whatever the order of their keys."""
    base = Base({key: Lazy(text) for key, text in a.texts.items()}, {}, a.size)
    order = dict.fromkeys((*(key for key in a.texts if key in b.texts), *b.texts))
    values = {key: Lazy(b.texts[key]) for key in order}
    patch, _ = changes(base, values, dict.fromkeys(values, Nature.TAGGED))
    return _changes(operations(patch)) if patch is not None else ()


def tree(headers: Iterator[Header]) -> dict[str | None, list[str]]:
    """Return the ids of each checkpoint's children, oldest first, by the id of their parent."""
    children: dict[str | None, list[str]] = {}
    for header in reversed(list(headers)):
        children.setdefault(header.parent, []).append(header.id)
    return children


def _pointer_of(path: str) -> str:
    """Return a JSON Pointer from one, or from dotted text."""
    if not path:
        raise UsageError("the path is empty", hint="give a key, such as 'messages'")
    return path if path.startswith("/") else "/" + path.replace(".", "/")
