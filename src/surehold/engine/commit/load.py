"""Loading, resuming and forking."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from textwrap import shorten
from typing import Any, NamedTuple, TypeVar

import msgspec

from surehold.core.records import OPEN_FROM, Header, check_run_id
from surehold.core.state import AgentState, Lineage, migrations
from surehold.core.values import decode
from surehold.engine.commit.face import Face
from surehold.engine.commit.save import ask_hooks, fire, header_data, save_draft, tell_repairs
from surehold.engine.commit.steps import Steps, Work
from surehold.engine.hooks import TRACEPARENT, HookEvent
from surehold.engine.journal import (
    CheckpointDraft,
    Loaded,
    Note,
    Reader,
    Saveable,
    Tail,
    draft_of,
    numbered_since,
    read_notes,
    read_since,
    texts_of,
)
from surehold.engine.metrics import resume_cause
from surehold.errors import ConflictError, NotFoundError, StorageError, SureholdError, UsageError
from surehold.storage.base import RecordQuery, RunInfo, restless

T = TypeVar("T")

_LOOKS = 100


def load(face: Face, checkpoint_id: str, *, run_id: str | None = None) -> Steps[Saveable]:
    """Load the state saved as that checkpoint, or as the one id that begins so."""
    header = yield Work(lambda: face.reader.resolve(checkpoint_id, run_id=run_id))

    def read() -> Saveable:  # any checkpoint, to branch off from it
        return _as_base(face, face.reader.load_visible(header), None, Loaded.upgraded)

    return (yield from _told(face, header, read))


def load_values(face: Face, checkpoint_id: str, keys: Sequence[str]) -> Steps[dict[str, Any]]:
    """Load some values of that checkpoint; the rest of its state is not decoded."""
    if isinstance(keys, str):
        raise UsageError("keys is a string", hint=f"give a list: keys=[{keys!r}]")
    header: Header = yield Work(lambda: face.reader.resolve(checkpoint_id))
    started = time.perf_counter()
    yield from fire(face, HookEvent.PRE_CHECKPOINT_LOAD, header.name, header_data(header))
    values: dict[str, Any] = yield Work(lambda: _values(face, header, keys))
    face.metrics.loaded(time.perf_counter() - started)
    return values


def _values(face: Face, header: Header, keys: Sequence[str]) -> dict[str, Any]:
    if header.schema != migrations.latest(header.name):  # a migration needs all values
        whole = texts_of(draft_of(face.reader.load_visible(header).upgraded()))
        texts = {key: whole[key] for key in keys if key in whole}
    else:
        texts = face.reader.values(header, keys)
    missing = [key for key in keys if key not in texts]
    if missing:
        there = ", ".join(face.reader.load_visible(header).texts)
        raise NotFoundError(
            f"checkpoint {header.id} has no {', '.join(map(repr, missing))}",
            hint=f"there is: {shorten(there, 200, placeholder=' ...') or 'nothing'}",
            checkpoint_id=header.id,
        )
    return {key: decode(texts[key]) for key in keys}


class Resumed(NamedTuple):
    """The state that a run continues with, and the end of its journal."""

    state: Saveable
    tail: Tail


def _told(face: Face, header: Header, read: Callable[[], T]) -> Steps[T]:
    """Read a checkpoint; hooks and metrics hear of it."""
    started = time.perf_counter()
    data = header_data(header)
    yield from fire(face, HookEvent.PRE_CHECKPOINT_LOAD, header.name, data)
    try:
        found: T = yield Work(read)
    except SureholdError:
        face.metrics.load_failed()
        raise
    state = found.state if isinstance(found, Resumed) else found
    yield from _loaded(face, header, state, started)
    return found


def _loaded(face: Face, header: Header, state: object, started: float) -> Steps[None]:
    seconds = time.perf_counter() - started
    face.metrics.loaded(seconds)
    data = {**header_data(header), "state": state, "duration_ms": seconds * 1000}
    yield from fire(face, HookEvent.POST_CHECKPOINT_LOAD, header.name, data)


def _continue_from(
    face: Face,
    run: RunInfo,
    newest: Header,
    notes: bool,
    made_of: Callable[[Loaded], Saveable],
) -> Resumed:
    """Read the newest checkpoint of *run* and make it the base of the next save."""
    reader, found = face.reader, (run, newest)
    for _ in range(_LOOKS):
        tail = reader.read_tail(*found, notes=notes)
        if tail is not None:
            return Resumed(_as_base(face, tail.loaded, tail.run, made_of), tail)
        now = reader.head_and_newest(run.run_id, newest.scope)  # someone saved meanwhile
        if now is None or now[1] is None:
            loaded = reader.load_visible(newest)
            return Resumed(_as_base(face, loaded, None, made_of), Tail(run, loaded))
        found = now[0], now[1]
    raise restless(run.run_id, _LOOKS)


def _as_base(
    face: Face,
    loaded: Loaded,
    run: RunInfo | None,
    made_of: Callable[[Loaded], Saveable],
) -> Saveable:
    """The state of a checkpoint, which is made the base of the next save."""
    state = made_of(loaded)
    same = loaded.is_current or made_of is Loaded.graph_state
    face.journal.resume_from(loaded, state if same else None, run)
    return state


def resume(face: Face, name_or_run_id: str, *, scope: str = "") -> Steps[Saveable | None]:
    """Load the newest state of that run, or of the newest unfinished run of that name."""
    check_run_id(name_or_run_id, "name_or_run_id")
    found = yield Work(lambda: face.reader.newest_to_resume(name_or_run_id, scope))
    yield from tell_repairs(face)
    if found is None or found[1] is None:
        return None
    return (yield from resume_at(face, *found)).state


def resume_run(
    face: Face,
    look: Callable[[], tuple[RunInfo, Header | None] | None],
    made_of: Callable[[Loaded], Saveable] = Loaded.upgraded,
    *,
    fires: bool = True,
) -> Steps[Resumed | None]:
    """Load the newest state of a run that *look* finds, and its open notes.

    Without *fires*, the caller fires the events of a resume itself.
    """
    found = yield Work(look)
    yield from tell_repairs(face)
    if found is None or found[1] is None:
        return None
    return (yield from resume_at(face, *found, notes=True, made_of=made_of, fires=fires))


def resume_at(
    face: Face,
    run: RunInfo,
    header: Header,
    *,
    notes: bool = False,
    made_of: Callable[[Loaded], Saveable] = Loaded.upgraded,
    fires: bool = True,
) -> Steps[Resumed]:
    """Load the newest checkpoint of *run*; hooks and metrics hear of a resume."""
    started = time.perf_counter()
    data = header_data(header)
    if fires:
        yield from fire(face, HookEvent.PRE_RESUME, header.name, data)
    cause = resume_cause(header.status)
    try:
        read = partial(_continue_from, face, run, header, notes, made_of)
        resumed = yield from _told(face, header, read)
    except SureholdError:
        face.metrics.resumed(cause, succeeded=False)
        raise
    face.metrics.resumed(cause)
    state = resumed.state
    if header.scope == "" and isinstance(state, AgentState):
        face.agent_runs.reached(state, header)
    if face.counts_saves:
        face.count_save(header)
    data |= {"state": state, "duration_ms": (time.perf_counter() - started) * 1000}
    if fires:
        yield from fire(face, HookEvent.POST_RESUME, header.name, data)
    return resumed


def fork(
    face: Face,
    checkpoint_id: str,
    run_id: str | None = None,
    change: Callable[[Loaded, CheckpointDraft], CheckpointDraft] | None = None,
    before: str | None = None,
) -> Steps[Saveable]:
    """Begin a new run with the state of that checkpoint, or what *change* makes of it.

    With *before*, the id of a recorded call, the fork continues where the checkpoint's run made
    that call: it has the calls that began earlier, whatever executes the run, and makes this one.

    The recorded calls of a durable function are its progress. A fork gets the calls recorded up to
    its checkpoint, and those after it too if the checkpoint is the newest. With other arguments
    the function makes other calls, so such a fork gets no recorded calls and begins anew.
    """
    new_id = str(uuid.uuid4()) if run_id is None else check_run_id(run_id)
    header: Header = yield Work(lambda: face.reader.resolve(checkpoint_id))
    notes: list[Note] = []
    if before is not None:
        header, notes = yield Work(lambda: _before(face.reader, header.run_id, before))
    started = time.perf_counter()
    data = {**header_data(header), "new_run_id": new_id}
    yield from fire(face, HookEvent.PRE_FORK, header.name, data)
    loaded: Loaded = yield Work(lambda: face.reader.load_visible(header))
    draft = _forked(loaded, new_id)
    if change is not None:
        draft = change(loaded, draft)
    if loaded.door.kind == "function" and not header.scope:
        place = msgspec.structs.replace(draft.place, status="interrupted")
        draft = msgspec.structs.replace(draft, place=place)
        if texts_of(draft)["arguments"] == loaded.texts["arguments"]:
            notes = notes or (yield Work(lambda: _calls_until(face.reader, header)))
        else:
            notes, draft = [], _begun_anew(draft, loaded)
    draft, shown = yield from ask_hooks(face, draft)
    try:
        first = yield from save_draft(face, draft, shown, asked=True, new_run=True, notes=notes)
    except ConflictError as error:
        raise UsageError(
            f"there is a run {new_id!r} already", hint="fork to another run_id"
        ) from error
    if first is None:
        raise StorageError(f"run {new_id!r} could not be stored", run_id=new_id)
    face.metrics.forked()
    load_data = header_data(first)
    yield from fire(face, HookEvent.PRE_CHECKPOINT_LOAD, first.name, load_data)
    made = Loaded(first, draft.form, texts_of(draft), 0, 0).upgraded()
    yield from _loaded(face, first, made, started)
    data |= {"state": made, "duration_ms": (time.perf_counter() - started) * 1000}
    yield from fire(face, HookEvent.POST_FORK, header.name, data)
    return made


def _begun_anew(draft: CheckpointDraft, loaded: Loaded) -> CheckpointDraft:
    """The fork of a durable function without what came of its other arguments."""
    ended = ("error", "traceback")
    extra = {key: value for key, value in loaded.extra.items() if key not in ended}
    return msgspec.structs.replace(
        draft,
        place=msgspec.structs.replace(draft.place, step=0),
        values={key: value for key, value in draft.values.items() if key != "result"},
        natures={key: value for key, value in draft.natures.items() if key != "result"},
        extra=lambda _: msgspec.json.encode(extra),
    )


def _calls_until(reader: Reader, header: Header) -> list[Note]:
    """The calls, answers and timers that a workflow had recorded by a checkpoint."""
    if header.status == "completed":  # which needs none of them any more, and names none
        notes = read_since(reader, header.run_id, 0, header.seq)
    else:
        found = reader.head_and_newest(header.run_id)
        newest = found is not None and found[1] is not None and found[1].id == header.id
        head = found[0].seq if found is not None and newest else header.seq
        notes = read_notes(reader, header, head)
    return [*{(note.kind, note.content.id): note for note in notes}.values()]


def _before(reader: Reader, run_id: str, call: str) -> tuple[Header, list[Note]]:
    """The checkpoint before a recorded call, and the notes between the two.

    A call that began before that one, and ended after it, has its outcome.
    """
    run = reader.run(run_id)
    found = numbered_since(reader, run_id, 0, run.seq) if run is not None else []
    newest = reader.newest(run) if run is not None else None
    first = newest.metadata.get(OPEN_FROM, newest.seq) if newest is not None else 0
    of_call = [seq for seq, note in found if note.kind == "effect" and note.content.id == call]
    at = next((seq for seq in of_call if seq > first), of_call[0] if of_call else None)
    headers = reader.storage.headers(RecordQuery(run_id=run_id, scope=""))
    header = next((one for one in headers if at is not None and one.seq < at), None)
    if at is None or header is None:
        raise NotFoundError(
            f"run {run_id!r} has recorded no call {call!r}",
            hint=f"surehold log {run_id} lists its calls",
            run_id=run_id,
        )
    newest_of = {note.content.id: note for _, note in found if note.kind == "effect"}
    notes = {(note.kind, note.content.id): note for note in read_notes(reader, header, at - 1)}
    return header, [
        newest_of[note.content.id] if note.kind == "effect" else note for note in notes.values()
    ]


def _forked(loaded: Loaded, run_id: str) -> CheckpointDraft:
    header = loaded.header
    draft = draft_of(loaded.state(), new_run_id=run_id)
    origin = {"run_id": header.run_id, "checkpoint_id": header.id, "step": header.step}
    progress = {key: header.metadata[key] for key in _PROGRESS if key in header.metadata}
    if TRACEPARENT in header.metadata:
        origin[TRACEPARENT] = header.metadata[TRACEPARENT]
    extra = dict(loaded.extra)
    if loaded.door.has_nodes:  # where it says how far the other run's journal counts
        extra["now"] = {k: v for k, v in extra["now"].items() if k not in _OF_THE_JOURNAL}
    place = msgspec.structs.replace(
        draft.place,
        run_id=run_id,
        node=header.node,
        kind="fork",
        status="running",
        tags=(),
        metadata={"forked_from": origin, **progress},
    )
    return msgspec.structs.replace(
        draft,
        place=place,
        lineage=Lineage(header.id),
        id=None,
        door=loaded.door,
        fingerprint=header.fingerprint,
        schema=header.schema,
        extra=(lambda _: msgspec.json.encode(extra)) if extra else None,
    )


_OF_THE_JOURNAL = ("floor", "branch", "spent")
"""Progress of a graph that is counted in the run's own journal."""
_PROGRESS = ("each", "round", "current_round")
"""Metadata that counts what a run has done: its fork continues there."""
