"""What a journal tells when it is read: history, blame, differences, the tree, its soundness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.checkpoint.crypto import read_body
from holdfast.checkpoint.journal import Loaded, Reader, Saveable
from holdfast.core.records import Header, Record
from holdfast.core.values import (
    Base,
    Lazy,
    Nature,
    Operation,
    Rebuilt,
    changes,
    decode,
    encode,
    operations,
    touches,
)
from holdfast.errors import HoldfastError, NotFoundError, UsageError
from holdfast.storage.base import RecordQuery, RunInfo

__all__ = [
    "Change",
    "CheckpointMetadata",
    "HistoryEntry",
    "Verdict",
    "blame",
    "changes_between",
    "changes_in",
    "history",
    "metadata_of",
    "tree",
    "verify",
]


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
    """What a listing shows of a record."""
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
    """One thing that changed: `op` is add, replace or remove; `path` a JSON Pointer."""

    op: str
    path: str
    value: Any = None


class HistoryEntry(msgspec.Struct, frozen=True):
    """A step of a run: its checkpoint, its state and what it changed."""

    checkpoint: CheckpointMetadata
    changes: tuple[Change, ...]
    load: Callable[[], Loaded]

    @property
    def state(self) -> Saveable:
        """The state at that step, loaded when it is asked for."""
        return self.load().state()


def _changes(steps: list[Operation]) -> tuple[Change, ...]:
    return tuple(Change(step.op, step.path, step.content()) for step in steps)


def history(reader: Reader, run: RunInfo, scope: str) -> Iterator[HistoryEntry]:
    """Every visible checkpoint of a run's scope, oldest first."""
    query = RecordQuery(run_id=run.run_id, scope=scope)
    for header in reversed(list(reader.storage.headers(query))):
        changed = _own_changes(reader, header)
        yield HistoryEntry(metadata_of(header), changed, partial(reader.load, header))


def _own_changes(reader: Reader, header: Header) -> tuple[Change, ...]:
    """What a checkpoint changed, as its own record tells; a first one added all it holds."""
    for record in reader.storage.read(header.run_id, first=header.seq, last=header.seq):
        return changes_in(reader, record)
    raise NotFoundError(f"record {header.seq} of run {header.run_id!r} is gone")


def changes_in(reader: Reader, record: Record) -> tuple[Change, ...]:
    """What the checkpoint that *record* holds changed."""
    body = read_body(reader.sealer.open(record), record.header)
    steps = operations(bytes(body.patch))
    if record.header.frame == "key" and not steps:
        state = msgspec.json.decode(body.state, type=dict[str, msgspec.Raw])
        return tuple(Change("add", f"/{key}", decode(bytes(v))) for key, v in state.items())
    return _changes(steps)


def blame(reader: Reader, run: RunInfo, path: str, scope: str) -> CheckpointMetadata | None:
    """The newest checkpoint that wrote the value at *path*, or None if none did."""
    pointer = _pointer_of(path)
    for header in reader.storage.headers(RecordQuery(run_id=run.run_id, scope=scope)):
        changes = _own_changes(reader, header)
        if any(touches(Operation(change.op, change.path), pointer) for change in changes):
            return metadata_of(header)
        if _appended(reader, header, changes, pointer):
            return metadata_of(header)
    return None


def _appended(reader: Reader, header: Header, changes: tuple[Change, ...], pointer: str) -> bool:
    """Whether what was appended to a list is, or holds, what *pointer* points at."""
    grew = Counter(change.path[:-2] for change in changes if change.path.endswith("/-"))
    for place, count in grew.items():
        index = pointer.removeprefix(f"{place}/").partition("/")[0]
        if not pointer.startswith(f"{place}/") or not index.isdecimal():
            continue
        value = _value_at(reader.load(header), place)
        if int(index) >= len(value) - count:
            return True
    return False


def _value_at(loaded: Loaded, place: str) -> Any:
    first, *parts = (part.replace("~1", "/").replace("~0", "~") for part in place[1:].split("/"))
    value = decode(loaded.texts[first])
    for part in parts:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def changes_between(a: Loaded, b: Loaded) -> tuple[Change, ...]:
    """What turns the state of one checkpoint into that of the other; in what order their keys
    stand is no difference."""
    base = Base({key: Lazy(text) for key, text in a.texts.items()}, {}, a.size)
    order = dict.fromkeys((*(key for key in a.texts if key in b.texts), *b.texts))
    values = {key: Lazy(b.texts[key]) for key in order}
    patch, _ = changes(base, values, dict.fromkeys(values, Nature.TAGGED))
    return _changes(operations(patch)) if patch is not None else ()


def tree(headers: Iterator[Header]) -> dict[str | None, list[str]]:
    """The ids of each checkpoint's children, by the id of their parent, oldest first."""
    children: dict[str | None, list[str]] = {}
    for header in reversed(list(headers)):
        children.setdefault(header.parent, []).append(header.id)
    return children


class Verdict(msgspec.Struct, frozen=True):
    """What verifying a run found. It is true if nothing is wrong."""

    run_id: str
    records: int
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems


def verify(reader: Reader, run: RunInfo) -> Verdict:
    """Recompute every digest of a run, follow its chain, and rebuild every checkpoint."""
    problems: list[str] = []
    walk = _Walk(reader, run, problems)
    try:
        for record in reader.records(run.run_id, 1, run.seq):
            walk.visit(record)
        walk.end()
    except HoldfastError as error:
        problems.append(error.message)
    return Verdict(run.run_id, walk.count, tuple(problems))


class _Walk:
    """One pass over a run: each state is rebuilt from the one before it."""

    def __init__(self, reader: Reader, run: RunInfo, problems: list[str]) -> None:
        self._reader = reader
        self._run = run
        self._problems = problems
        self._at: dict[str, tuple[int, Rebuilt]] = {}
        self._edges: dict[int, str] = {}
        self._holes: list[tuple[int, int, str]] = []
        self._before = (0, "")
        self.count = 0

    def visit(self, record: Record) -> None:
        header = record.header
        seq, digest = self._before
        if header.seq != seq + 1:
            self._holes.append((seq + 1, header.seq - 1, header.prev))
        elif header.prev != digest:
            self._problems.append(f"record {header.seq} does not follow the one before it")
        self._before = (header.seq, header.digest)
        self.count += 1
        if header.frame == "note":
            if header.kind == "prune":
                erased = msgspec.json.decode(record.body)["erased"]
                self._edges.update({hole["last"]: hole["digest"] for hole in erased})
            return
        try:
            self._rebuild(record)
        except (HoldfastError, msgspec.MsgspecError, LookupError, ValueError, TypeError) as error:
            self._at.pop(header.scope, None)
            if not self._is_left_over(header):
                self._problems.append(f"checkpoint {header.id} (step {header.step}): {error}")

    def _is_left_over(self, header: Header) -> bool:
        """Whether a checkpoint is hidden, and was built on what a prune has taken meanwhile."""
        key_seq = header.key_seq or header.seq
        if not any(first <= key_seq <= last for first, last, _ in self._holes):
            return False
        found = self._reader.storage.find(header.id)
        return (header.run_id, header.seq) not in [(one.run_id, one.seq) for one in found]

    def _rebuild(self, record: Record) -> None:
        header = record.header
        seq, made = self._at.get(header.scope, (0, None))
        body = read_body(self._reader.sealer.open(record), header)
        if header.frame == "key":
            made = Rebuilt(bytes(body.state))
        elif made is not None and seq == header.base_seq:
            made.apply(bytes(body.patch))
        else:
            made = Rebuilt(state_text(self._reader.load(header).texts))
        self._at[header.scope] = (header.seq, made)

    def end(self) -> None:
        run = self._run
        if self._before != (run.seq, run.digest):
            self._problems.append(f"the newest record is {self._before[0]}, not {run.seq}")
        for first, last, digest in self._holes:
            if self._edges.get(last) != digest:
                self._problems.append(f"records {first} to {last} are gone, and no prune says so")
        for scope, (seq, made) in self._at.items():
            header = next(iter(self._reader.storage.headers(_newest(run, scope))), None)
            if header and header.seq == seq and header.size != len(state_text(made.texts())):
                self._problems.append(f"record {seq} does not have the size it says")
        self._look_up()

    def _look_up(self) -> None:
        """Whether what is listed can be found by its id, as loading does."""
        storage = self._reader.storage
        for header in storage.headers(RecordQuery(run_id=self._run.run_id)):
            places = [(found.run_id, found.scope) for found in storage.find(header.id)]
            if (header.run_id, header.scope) not in places:
                self._problems.append(f"checkpoint {header.id} cannot be found by its id")


def _newest(run: RunInfo, scope: str) -> RecordQuery:
    return RecordQuery(run_id=run.run_id, scope=scope, limit=1)


def state_text(texts: Mapping[str, bytes]) -> bytes:
    """The whole state's text, from those of its values."""
    return b"{%b}" % b",".join(b"%b:%b" % (encode(k), text) for k, text in texts.items())


def _pointer_of(path: str) -> str:
    """A JSON Pointer from one, or from dotted text."""
    if not path:
        raise UsageError("the path is empty", hint="give a key, such as 'messages'")
    return path if path.startswith("/") else "/" + path.replace(".", "/")
