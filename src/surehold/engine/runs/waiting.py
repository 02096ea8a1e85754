"""Pending questions, events, timers and effects in doubt, and answers to them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from surehold.config import read_config
from surehold.core.policy import ANSWERED, QUEUED, describe_schema, validate_answer
from surehold.core.records import Answer, Effect, Question, Timer, check_free
from surehold.core.values import decode, encode
from surehold.engine.commit import append_together
from surehold.engine.hooks import redacting_hooks
from surehold.engine.journal import Note, Reader, Request, line_in
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs.effect_log import Entry, Ledger, in_doubt
from surehold.engine.runs.messages import deliver, ended_topic, message_note
from surehold.errors import ConflictError, NotFoundError, UsageError
from surehold.storage.base import (
    RunInfo,
    RunQuery,
    Storage,
    is_live,
    newest_lease,
    newest_record,
    owner_is_dead,
)

_NOTHING: Any = object()
_TRIES = 16
"""Attempts to answer a run that is written to meanwhile."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A question, effect, event or time that a run needs before it can continue."""

    run_id: str
    id: str
    """Unique in its run. What an agent inside a run waits for is listed with the id ``RUN/ID``,
    which begins with the agent's own run."""
    kind: Literal["question", "effect", "event", "message", "timer"]
    scope: str
    step: int
    node: str
    name: str = ""
    """The effect's or the event's name."""
    question: Any = None
    schema: Any = None
    """The JSON Schema of the answers that fit."""
    problem: str = ""
    """The reason why the last answer did not fit."""
    key: str = ""
    """The effect's idempotency key, to look the call up in the other system."""
    inputs: str = ""
    """The arguments of the effect, short and without secrets."""
    policy: str = ""
    began: datetime | None = None
    until: datetime | None = None
    """The time at which the wait ends by itself."""

    @property
    def child(self) -> str:
        """The run whose end is waited for; empty for any other wait."""
        begin = ended_topic("")
        return self.name[len(begin) :] if self.name.startswith(begin) else ""


def pending(
    run_id: str | None = None, *, limit: int | None = None, storage: Target = None
) -> list[Waiting]:
    """List what a run, or without a run id every run of the storage, waits for.

    The newest runs come first; with a *limit*, no more are looked at than it takes.

    What the agents inside a run wait for, each in a run of its own, is listed with it. Of a run
    that a live process executes, only the events that it waits for are listed. An effect in doubt
    with ``in_doubt="probe"`` or ``"retry"`` needs no person, and is not: a resume settles it.
    """
    with opened(storage) as manager:
        reader = manager.reader
        query = RunQuery(run_id=run_id, open=True)
        if run_id is not None:
            reader.known(run_id)
        found = (one for run in reader.storage.runs(query) for one in waiting_now(reader, run))
        inside = waiting_inside(reader, run_id) if run_id is not None else []
        free = (one for one in inside if not _held(reader, one.run_id))
        return [*islice(chain(found, free), limit)]


def waiting_now(reader: Reader, run: RunInfo) -> list[Waiting]:
    """List what a run itself waits for; only events, if a live process executes it."""
    if not _held(reader, run.run_id):
        return [*_of_run(reader, run)]
    if run.status != "waiting":
        return []
    return [one for one in _of_run(reader, run) if one.kind in ("event", "message")]


def _inside(reader: Reader, run_id: str) -> list[RunInfo]:
    """The unfinished runs of agents inside that run, or inside those."""
    inside = f"{run_id}."
    return [
        run
        for run in list(reader.storage.runs(RunQuery(open=True)))
        if run.run_id.startswith(inside)
        and run.status in ("running", "interrupted", "waiting")
        and (newest := reader.newest(run)) is not None
        and f"{newest.metadata.get('parent_run', '')}.".startswith(inside)
    ]


def waiting_inside(reader: Reader, run_id: str) -> list[Waiting]:
    """List what the agents inside that run wait for, with the ids ``RUN/ID``."""
    return [outside(waiting) for run in _inside(reader, run_id) for waiting in _of_run(reader, run)]


def outside(waiting: Waiting) -> Waiting:
    """The same *waiting* with the id ``RUN/ID``."""
    return msgspec.structs.replace(waiting, id=f"{waiting.run_id}/{waiting.id}")


def questions_of(reader: Reader, run_id: str) -> list[Waiting]:
    """The open questions of that run itself."""
    run = reader.run(run_id)
    found = _of_run(reader, run) if run is not None else ()
    return [waiting for waiting in found if waiting.kind == "question"]


def answer(
    run_id: str,
    id: str | None,
    value: Any = _NOTHING,
    *,
    error: str | None = None,
    repeat: bool = False,
    by: str = "",
    storage: Target = None,
) -> Waiting:
    """Settle what a run waits for; a resume then continues. Nothing is executed here.

    *id* is one that `pending` lists, or a name if only one of that name waits in the run itself;
    None if the run waits for one thing only. Give the *value*: the answer to a question, the value
    of an event, the message that the run waits for, the outcome of an effect in doubt. Of an
    effect, give instead the *error* that it failed with, or ``repeat=True`` if it did not happen:
    it is called once more. A run that a live process executes is a `LeaseHeldError`, unless it
    waits for an event or a message. Whoever answers second gets a `NotFoundError`. *by* is
    recorded as the person who answered.
    """
    if (value is not _NOTHING) + (error is not None) + repeat != 1:
        raise UsageError(
            "answer() takes one of a value, error= and repeat=True",
            hint=f"surehold.answer({run_id!r}, id, value)",
        )
    manager = storage if isinstance(storage, CheckpointManager) else _configured(storage)
    try:
        reader = manager.reader
        for _ in range(_TRIES):
            run, own = reader.known(run_id), None
            if id is not None:
                run, own = _place(reader, run, id)
            live = _held(reader, run_id) or _held(reader, run.run_id)
            note = _wanted(reader, run, own)
            if live and not (isinstance(note.content, Timer) and note.content.event):
                check_not_held(reader, run_id)
                check_not_held(reader, run.run_id)
            if isinstance(note.content, Timer) and note.content.mail:
                if value is _NOTHING:
                    raise UsageError(f"{note.content.id!r} is not an effect", hint="give a value")
                sent = message_note(note.content.name, value, by=by)
                deliver(manager, run.run_id, sent)
                return waiting_of(run.run_id, note)
            entry = _settled(note.content, value, error, repeat)
            kind = "answer" if isinstance(entry, Answer) else "effect"
            told = {"by": by} if by else {}
            written = msgspec.structs.replace(note, kind=kind, content=entry, metadata=told)
            try:
                _append(manager, run, written)
            except ConflictError:
                manager.face.journal.invalidate(run.run_id)
                continue  # someone wrote meanwhile, perhaps another answer
            return waiting_of(run.run_id, note)
        raise ConflictError(f"run {run_id!r} is written to all the time", run_id=run_id)
    finally:
        if manager is not storage:
            manager.close()


def _append(manager: CheckpointManager, run: RunInfo, note: Note) -> None:
    """Append an answer to *run*, and tell queued runs around it, in one commit."""
    around = _queued_around(manager.reader, run)
    if not around:
        manager.append_notes(run.run_id, (note,), head=run.seq)
        return
    told = Note(kind=ANSWERED, content={}, metadata={"in": run.run_id})
    requests = [Request(run_id=run.run_id, notes=(note,), head=run.seq)]
    requests += [Request(run_id=outer, notes=(told,)) for outer in around]
    manager.perform(append_together(manager.face, requests))


def _queued_around(reader: Reader, run: RunInfo) -> list[str]:
    """The runs around an agent's *run*, innermost first, that were queued."""
    found: list[str] = []
    inner: RunInfo | None = run
    while inner is not None and (newest := reader.newest(inner)) is not None:
        outer = str(newest.metadata.get("parent_run", ""))
        inner = reader.run(outer) if outer else None
        if inner is not None and newest_record(reader.storage, outer, QUEUED) is not None:
            found.append(outer)
    return found


def _configured(storage: Storage | str | None) -> CheckpointManager:
    """A manager that takes secrets out if `surehold.toml` says so."""
    redact = read_config(Path.cwd()).redact
    return CheckpointManager(storage, hook_manager=redacting_hooks() if redact else None)


def approve(run_id: str, id: str | None = None, *, storage: Target = None) -> Waiting:
    """Answer yes to the question or event *id*, or to the only one of a run."""
    return _say(run_id, id, True, storage)


def reject(
    run_id: str, id: str | None = None, *, reason: str = "", storage: Target = None
) -> Waiting:
    """Answer no to the question or event *id*, or to the only one of a run."""
    said = {"approved": False, "reason": reason} if reason else False
    return _say(run_id, id, said, storage)


def _say(run_id: str, id: str | None, said: Any, storage: Target) -> Waiting:
    with opened(storage) as manager:
        found = [
            one
            for one in pending(run_id, storage=manager)
            if one.kind in ("question", "event")
            and id in (None, one.id, f"{one.run_id}/{one.id}", one.name)
        ]
        if len(found) == 1:
            one = found[0]
            own = one.id.removeprefix(f"{one.run_id}/")
            return answer(one.run_id, own, said, storage=manager)
        there = ", ".join(one.id for one in found)
        if found:
            raise UsageError(
                f"run {run_id!r} waits for {len(found)} answers",
                hint=f"give the id of one: {there}",
            )
        which = f" {id}" if id is not None else ""
        raise NotFoundError(
            f"run {run_id!r} waits for no answer{which}",
            hint="surehold.pending() lists what runs wait for",
            run_id=run_id,
        )


def _settled(known: Entry, value: Any, error: str | None, repeat: bool) -> Effect | Answer:
    """The entry that settles *known*."""
    if isinstance(known, Effect):
        return _resolved(known, value, error, repeat)
    if value is _NOTHING:
        raise UsageError(f"{known.id!r} is not an effect", hint="give a value")
    if isinstance(known, Question):
        check_fits(known.id, value, known.schema)
    elif isinstance(known, Timer) and not known.event:
        raise UsageError(f"{known.id!r} waits for a time", hint="it ends by itself")
    entry = Answer(id=known.id, value=msgspec.Raw(encode(value)))
    if isinstance(known, Question) and known.bound:
        entry.bound, entry.asked = known.bound, known.text
    return entry


def _place(reader: Reader, run: RunInfo, id: str) -> tuple[RunInfo, str]:
    """The run that *id* belongs to, that one or one inside it, and the id in that run."""
    inside = _inside(reader, run.run_id) if id.startswith(f"{run.run_id}.") else ()
    for one in (run, *inside):
        own = id.removeprefix(f"{one.run_id}/")
        if own != id:
            return one, own
    return run, id


def check_fits(id: str, answer: Any, schema: Any, hint: str = "") -> None:
    """Raise a `UsageError` if *answer* does not fit its schema; the node decides."""
    problem = validate_answer(answer, schema)
    if problem:
        examples = schema.get("examples") if isinstance(schema, dict) else None
        such = f", such as {encode(examples[0]).decode()}" if examples else ""
        raise UsageError(
            f"the answer to {id} does not fit: {problem}",
            hint=f"it expects {describe_schema(schema)}{such}{hint}",
            question=id,
        )


def _resolved(known: Effect, outcome: Any, error: str | None, repeat: bool) -> Effect:
    if repeat:
        return msgspec.structs.replace(known, repeat=True)
    if error is not None:
        return msgspec.structs.replace(known, done=True, error=("RunError", error))
    return msgspec.structs.replace(known, done=True, value=msgspec.Raw(encode(outcome)))


def open_notes(reader: Reader, run: RunInfo) -> Ledger:
    """The ledger of the step that a run is in the middle of; it is only read."""
    tail = reader.tail_of(run.run_id)
    if tail is None:
        return ledger_of(())
    return ledger_of(line_in(reader.sealer, tail.notes, tail.loaded.header, tail.run.seq).notes)


def ledger_of(notes: Iterable[Note]) -> Ledger:
    """A ledger of these notes, which is only read."""
    ledger = Ledger(_cannot_append, _cannot_append_now)
    ledger.take(notes)
    return ledger


def _cannot_append_now(notes: Any) -> None:
    raise UsageError("this ledger is only read")


async def _cannot_append(notes: Any, wait: bool) -> None:
    _cannot_append_now(notes)


def _of_run(reader: Reader, run: RunInfo) -> Iterator[Waiting]:
    for note in open_notes(reader, run).waiting():
        yield waiting_of(run.run_id, note)


def waiting_of(run_id: str, note: Note) -> Waiting:
    """The note in the form that people see."""
    common: dict[str, Any] = {
        "run_id": run_id,
        "id": note.content.id,
        "scope": note.scope,
        "step": note.step,
        "node": note.node or "",
    }
    if isinstance(note.content, Question):
        asked = note.content
        return Waiting(
            kind="question",
            question=decode(bytes(asked.text)),
            schema=asked.schema,
            problem=asked.problem,
            until=_moment(asked.until),
            **common,
        )
    if isinstance(note.content, Timer):
        timer = note.content
        return Waiting(
            kind="message" if timer.mail else "event" if timer.event else "timer",
            name=timer.name,
            until=_moment(timer.until),
            **common,
        )
    known: Effect = note.content
    return Waiting(
        kind="effect",
        name=known.name,
        key=known.key,
        inputs=known.inputs,
        policy=known.policy,
        began=datetime.fromisoformat(known.began).astimezone(UTC) if known.began else None,
        **common,
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _wanted(reader: Reader, run: RunInfo, id: str | None) -> Note:
    run_id, ledger = run.run_id, open_notes(reader, run)
    waiting = ledger.waiting()
    found = [note for note in waiting if id in (None, note.content.id)] or [
        note for note in waiting if getattr(note.content, "name", None) == id
    ]
    if len(found) == 1:
        return found[0]
    inside = [one.id for one in waiting_inside(reader, run_id)]
    there = ", ".join([*(note.content.id for note in waiting), *inside]) or "nothing"
    if found:
        several = "several effects" if id is None else f"several effects {id!r}"
        raise UsageError(f"{several} of run {run_id!r} wait", hint=f"give one of {there}")
    for note in ledger.effects():
        if in_doubt(note) and id in (note.content.id, note.content.name):
            raise UsageError(
                f"effect {note.content.id} of run {run_id!r} has in_doubt={note.content.policy!r},"
                " and needs no person",
                hint="resume the run: that settles it; with in_doubt='ask' it asks you",
                run_id=run_id,
            )
    what = "nothing" if id is None else f"nothing named {id!r}"
    hint = (
        f"waiting: {there}" if waiting or inside else "surehold.pending() lists what runs wait for"
    )
    raise NotFoundError(f"{what} waits in run {run_id!r}", hint=hint, run_id=run_id)


def check_not_held(reader: Reader, run_id: str) -> None:
    """Raise `LeaseHeldError` if a live process executes the run."""
    lease = newest_lease(reader.storage, run_id)
    check_free(lease, now=time.time(), owner_is_dead=owner_is_dead(lease))


def _held(reader: Reader, run_id: str) -> bool:
    return is_live(newest_lease(reader.storage, run_id), time.time())
