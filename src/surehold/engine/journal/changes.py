"""Changes in a journal: history, blame, differences, the tree of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from surehold.core.records import Header, Record
from surehold.core.values import (
    Base,
    Lazy,
    Nature,
    Operation,
    changes,
    decode,
    encode_tree,
    operations,
    pointer,
    touches,
)
from surehold.engine.journal.body import Body, read_body, read_written
from surehold.engine.journal.draft import Saveable
from surehold.engine.journal.reader import Loaded, Reader
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunInfo

_AT_A_TIME = 256
_NEARBY = 16
"""Records before a place that are looked at for a checkpoint."""
_WHOLE = b'""'
"""The path of a change of the whole state, in the text of a patch."""


_IN_HEADER = {
    "checkpoint_id": "id",
    "parent_checkpoint_id": "parent",
    "size_bytes": "size",
    "stored_bytes": "stored",
    "timestamp": "saved_at",
}


class CheckpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a checkpoint, but for the time of its save, which has two names."""

    run_id: str
    name: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    scope: str
    seq: int
    step: int
    node: str | None
    kind: str
    status: str
    size_bytes: int
    """Bytes of the whole state as JSON text."""
    stored_bytes: int
    """Bytes that this checkpoint takes in the storage."""
    tags: tuple[str, ...]
    metadata: dict[str, Any]


class CheckpointMetadata(CheckpointFacts, frozen=True, kw_only=True):
    """A checkpoint without its state."""

    timestamp: datetime

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
    return CheckpointMetadata(**facts_of(header, CheckpointMetadata.__struct_fields__))


def facts_of(header: Header, names: Iterable[str]) -> dict[str, Any]:
    """The facts of a header, under the names that users know."""
    facts = {name: getattr(header, _IN_HEADER.get(name, name)) for name in names}
    return facts | {"metadata": dict(header.metadata)}


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
        return tuple(Change("add", pointer(key), decode(bytes(v))) for key, v in state.items())
    return _changes(steps)


def blame(reader: Reader, run: RunInfo, path: str, scope: str) -> CheckpointMetadata | None:
    """Return the newest checkpoint that wrote the value at *path*; None if none did."""
    place = _pointer_of(path)
    lengths = _Lengths(reader, place)
    for header, steps, follows in _newest_first(reader, run, scope, place):
        wrote = any(touches(step, place) for step in steps)
        wrote = wrote or lengths.appended(header, steps, follows=follows)
        if wrote and reader.is_visible(header):
            return metadata_of(header)
    return None


def _newest_first(
    reader: Reader, run: RunInfo, scope: str, path: str
) -> Iterator[tuple[Header, list[Operation], bool]]:
    """Yield the checkpoints that may have written at *path*, each with its operations.

    The third value is true if nothing wrote there between it and the one yielded before. Many
    records are read at a time. A record is passed over if no path in its text begins with the
    key, and so are all between a keyframe and the change before it that the keyframe names.
    """
    key, *rest = (_unescape(part) for part in path[1:].split("/"))
    needle = encode_tree(pointer(key))[:-1]
    last, expected = run.seq, ""
    while last > 0:
        first = max(last - _AT_A_TIME + 1, 1)
        found = [*reader.storage.read(run.run_id, first=first, last=last)]
        for record in reversed(found):
            header = record.header
            if header.seq > last or header.frame == "note" or header.scope != scope:
                continue
            follows = expected in ("", header.id)
            expected = header.parent or "none"
            text = reader.sealer.open(record)
            if header.frame != "key" and needle not in text and _WHOLE not in text:
                yield header, [], follows
                continue
            body = read_body(text, header)
            yield header, _operations_in(body, header), follows
            if header.frame == "key" and key in (written := read_written(body)):
                last = _last_change(reader, header, written[key], key, rest)
                expected = "" if last == written[key][0] else "none"
        # What retention left may be far away.
        before = first - 1 if found else _newest_before(reader, run.run_id, scope, first)
        last = min(last, before)


def _newest_before(reader: Reader, run_id: str, scope: str, seq: int) -> int:
    """The seq of the newest checkpoint before the record *seq*; 0 if there is none."""
    headers = reader.storage.headers(RecordQuery(run_id=run_id, scope=scope))
    return next((header.seq for header in headers if header.seq < seq), 0)


def _last_change(
    reader: Reader, keyframe: Header, written: tuple[int, int], key: str, rest: list[str]
) -> int:
    """The record before a keyframe to look at next; none between wrote there.

    Of a list that was only appended to, the first keyframe that has the item is searched for.
    """
    last, rewritten = written
    if not rest or not rest[0].isdecimal() or rewritten == last:
        return last
    index, low, high = int(rest[0]), rewritten, keyframe.seq
    if high - low <= 4 * _AT_A_TIME:  # a search would read as much
        return last
    if _length_at(reader, keyframe, key) <= index:
        return rewritten
    while high - low > _AT_A_TIME:
        middle = (low + high) // 2
        near = _checkpoint_at(reader, keyframe, middle)
        if near is None:
            break
        if near.seq <= low or _length_at(reader, near, key) <= index:
            low = middle
        else:
            high = near.seq
    return min(high, last)


def _checkpoint_at(reader: Reader, like: Header, seq: int) -> Header | None:
    """The keyframe of the checkpoint at the record *seq*, or shortly before it."""
    for at in range(seq, max(seq - _NEARBY, 0), -1):
        for record in reader.storage.read(like.run_id, first=at, last=at):
            header = record.header
            if header.frame == "note" or header.scope != like.scope:
                continue
            if header.frame == "key":
                return header
            key_seq = header.key_seq or 0
            keys = reader.storage.read(like.run_id, first=key_seq, last=key_seq)
            return next((one.header for one in keys), None)
    return None


def _length_at(reader: Reader, keyframe: Header, key: str) -> int:
    """The length of the list at a key of a keyframe; 0 if it is not there."""
    for record in reader.storage.read(keyframe.run_id, first=keyframe.seq, last=keyframe.seq):
        body = read_body(reader.sealer.open(record), keyframe)
        text = msgspec.json.decode(body.state, type=dict[str, msgspec.Raw]).get(key)
        return len(msgspec.json.decode(text, type=list[msgspec.Raw])) if text else 0
    return 0


def _operations_in(body: Body, header: Header) -> list[Operation]:
    """The operations of a checkpoint, without their values."""
    steps = operations(body.patch)
    if header.frame == "key" and not steps and not body.written:
        state = msgspec.json.decode(body.state, type=dict[str, msgspec.Raw])
        return [Operation("add", pointer(key)) for key in state]
    return steps


class _Lengths:
    """Lengths of the lists along a pointer, from newer checkpoints to older ones."""

    def __init__(self, reader: Reader, pointer: str) -> None:
        self._reader = reader
        self._pointer = pointer
        self._lengths: dict[str, int] = {}

    def appended(self, header: Header, steps: list[Operation], *, follows: bool) -> bool:
        """Return True if a checkpoint appended the value at the pointer, or one around it.

        *follows* says that nothing else changed the lists since the checkpoint before.
        """
        if not follows:
            self._lengths.clear()
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
    """Return True if a change but an append may alter the length of that list."""
    if change.path == f"{place}/-":
        return False
    around = place == change.path or place.startswith(f"{change.path}/")
    inside = change.path.rpartition("/")[0] == place and change.op != "replace"
    return around or inside


def _value_at(loaded: Loaded, place: str) -> Any:
    first, *parts = (_unescape(part) for part in place[1:].split("/"))
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


def tree(headers: Iterable[Header]) -> dict[str | None, list[str]]:
    """Return the ids of each checkpoint's children, oldest first, by parent id."""
    children: dict[str | None, list[str]] = {}
    for header in reversed(list(headers)):
        children.setdefault(header.parent, []).append(header.id)
    return children


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _pointer_of(path: str) -> str:
    """Return a JSON Pointer from one, or from dotted text."""
    if not path:
        raise UsageError("the path is empty", hint="give a key, such as 'messages'")
    return path if path.startswith("/") else "/" + path.replace(".", "/")
