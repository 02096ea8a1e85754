"""What runs wait for, and saying it from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.effects.ledger import Answer, Effect, Ledger, Question, read_notes
from holdfast.checkpoint.journal import Note, Reader
from holdfast.checkpoint.manager import CheckpointManager, manager_for
from holdfast.core.policy import unfit, what_fits
from holdfast.core.records import check_free
from holdfast.core.values import decode, encode
from holdfast.errors import LeaseHeldError, NotFoundError, UsageError
from holdfast.storage.base import Leasing, RunInfo, RunQuery, Storage, is_dead

__all__ = [
    "Waiting",
    "check_fits",
    "check_not_held",
    "open_notes",
    "outside",
    "pending",
    "questions_of",
    "resolve",
    "waiting_inside",
    "waiting_of",
]

_NOTHING: Any = object()


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run cannot go on without: an answer, or the outcome of an effect."""

    run_id: str
    id: str
    """Names it in its run. Where a run shows what an agent inside it waits for, the id begins with
    the run of that one, ``RUN/ID``, so that no two are equal."""
    kind: Literal["question", "effect"]
    scope: str
    step: int
    node: str
    name: str = ""
    """The effect's name."""
    question: Any = None
    schema: Any = None
    """The JSON Schema of the answers that fit."""
    problem: str = ""
    """Why the last answer did not fit."""
    key: str = ""
    """The effect's idempotency key, to look it up with outside."""
    policy: str = ""
    began: datetime | None = None


def pending(
    run_id: str | None = None, *, storage: CheckpointManager | Storage | str | None = None
) -> list[Waiting]:
    """What the run waits for or, without a run id, what all runs of the storage wait for.

    A run waits for what the agents inside it wait for, each in a run of its own, too. Runs that a
    live process is executing are not looked at.
    """
    manager = manager_for(storage)
    try:
        reader = manager.reader
        query = RunQuery(run_id=run_id, not_status="completed")
        if run_id is not None and reader.run(run_id) is None:
            raise _no_run(run_id)
        runs = [run for run in reader.storage.runs(query) if not _held(reader, run.run_id)]
        found = [waiting for run in runs for waiting in _of_run(reader, run)]
        inside = waiting_inside(reader, run_id) if run_id is not None else []
        return [*found, *(one for one in inside if not _held(reader, one.run_id))]
    finally:
        if manager is not storage:
            manager.close()


def _inside(reader: Reader, run_id: str) -> list[RunInfo]:
    """The runs of agents inside that run, or inside those, that are gone on with when it is."""
    inside = f"{run_id}."
    return [
        run
        for run in list(reader.storage.runs(RunQuery(not_status="completed")))
        if run.run_id.startswith(inside)
        and run.status in ("running", "interrupted")
        and (newest := reader.newest(run)) is not None
        and f"{newest.metadata.get('parent_run', '')}.".startswith(inside)
    ]


def waiting_inside(reader: Reader, run_id: str) -> list[Waiting]:
    """What the agents inside that run wait for, with ids as it shows them."""
    return [outside(waiting) for run in _inside(reader, run_id) for waiting in _of_run(reader, run)]


def outside(waiting: Waiting) -> Waiting:
    """What a run waits for, as those that it is inside show it."""
    return msgspec.structs.replace(waiting, id=f"{waiting.run_id}/{waiting.id}")


def questions_of(reader: Reader, run_id: str) -> list[Waiting]:
    """What that run itself asks."""
    run = reader.run(run_id)
    found = _of_run(reader, run) if run is not None else ()
    return [waiting for waiting in found if waiting.kind == "question"]


def resolve(
    run_id: str,
    effect: str,
    outcome: Any = _NOTHING,
    *,
    error: str | None = None,
    repeat: bool = False,
    storage: CheckpointManager | Storage | str | None = None,
) -> Waiting:
    """Say what became of an effect in doubt, or answer a question; a resume then goes on with it.

    *effect* is an id that `pending` gives, a question's too and those of agents inside the run, or
    an effect's name if only one of that name waits in the run itself. Give the *outcome* that it
    had (for a question: the answer), the *error* that it failed with, or ``repeat=True`` if it did
    not happen and is to be called again. Nothing is run. A run that a live process executes is a
    `LeaseHeldError`.
    """
    if (outcome is not _NOTHING) + (error is not None) + repeat != 1:
        raise UsageError("give one of outcome, error= and repeat=True")
    manager = manager_for(storage)
    try:
        reader = manager.reader
        run = reader.run(run_id)
        if run is None:
            raise _no_run(run_id)
        check_not_held(reader, run_id)
        run, effect = _place(reader, run, effect)
        run_id = run.run_id
        check_not_held(reader, run_id)
        note = _wanted(reader, run, effect)
        entry: Effect | Answer
        if isinstance(note.content, Question):
            if outcome is _NOTHING:
                raise UsageError(f"{effect!r} is a question", hint="give its answer as outcome")
            check_fits(note.content.id, outcome, note.content.schema)
            entry = Answer(id=note.content.id, value=msgspec.Raw(encode(outcome)))
        else:
            entry = _resolved(note.content, outcome, error, repeat)
        kind = "answer" if isinstance(entry, Answer) else "effect"
        written = msgspec.structs.replace(note, kind=kind, content=entry)
        manager.append_notes(run_id, (written,))
        return waiting_of(run_id, note)
    finally:
        if manager is not storage:
            manager.close()


def _place(reader: Reader, run: RunInfo, id: str) -> tuple[RunInfo, str]:
    """The run that *id* is of, that one or one inside it, and the id that it has there."""
    inside = _inside(reader, run.run_id) if id.startswith(f"{run.run_id}.") else ()
    for one in (run, *inside):
        own = id.removeprefix(f"{one.run_id}/")
        if own != id:
            return one, own
    return run, id


def check_fits(id: str, answer: Any, schema: Any, hint: str = "") -> None:
    """Raise a `UsageError` if *answer* plainly does not fit; the node has the last word."""
    problem = unfit(answer, schema)
    if problem:
        raise UsageError(
            f"the answer to {id} does not fit: {problem}",
            hint=f"it expects {what_fits(schema)}{hint}",
            question=id,
        )


def _resolved(known: Effect, outcome: Any, error: str | None, repeat: bool) -> Effect:
    if repeat:
        return msgspec.structs.replace(known, repeat=True)
    if error is not None:
        return msgspec.structs.replace(known, done=True, error=("RunError", error))
    return msgspec.structs.replace(known, done=True, value=msgspec.Raw(encode(outcome)))


def open_notes(reader: Reader, run: RunInfo) -> Ledger:
    """The ledger of the step that a run is in the middle of."""
    ledger = Ledger(_cannot_append)
    newest = reader.newest(run)
    if newest is not None:
        ledger.take(read_notes(reader, newest, run.seq))
    return ledger


async def _cannot_append(notes: Any, wait: bool) -> None:
    raise UsageError("this ledger is only read")


def _of_run(reader: Reader, run: RunInfo) -> Iterator[Waiting]:
    for note in open_notes(reader, run).waiting():
        yield waiting_of(run.run_id, note)


def waiting_of(run_id: str, note: Note) -> Waiting:
    """The note as people see it."""
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
            **common,
        )
    known: Effect = note.content
    return Waiting(
        kind="effect",
        name=known.name,
        key=known.key,
        policy=known.policy,
        began=datetime.fromisoformat(known.began).astimezone(UTC) if known.began else None,
        **common,
    )


def _wanted(reader: Reader, run: RunInfo, id: str) -> Note:
    run_id, waiting = run.run_id, open_notes(reader, run).waiting()
    found = [note for note in waiting if note.content.id == id] or [
        note for note in waiting if getattr(note.content, "name", None) == id
    ]
    if len(found) == 1:
        return found[0]
    inside = [one.id for one in waiting_inside(reader, run_id)]
    there = ", ".join([*(note.content.id for note in waiting), *inside]) or "nothing"
    if found:
        raise UsageError(
            f"several effects {id!r} of run {run_id!r} wait", hint=f"give one of {there}"
        )
    raise NotFoundError(
        f"nothing named {id!r} waits in run {run_id!r}", hint=f"waiting: {there}", run_id=run_id
    )


def check_not_held(reader: Reader, run_id: str) -> None:
    """Raise `LeaseHeldError` if a live process executes the run."""
    storage = reader.storage
    if isinstance(storage, Leasing):
        lease = storage.lease_of(run_id)
        dead = lease is not None and lease.owner is not None and is_dead(lease.owner)
        check_free(lease, now=time.time(), owner_is_dead=dead)


def _held(reader: Reader, run_id: str) -> bool:
    try:
        check_not_held(reader, run_id)
    except LeaseHeldError:
        return True
    return False


def _no_run(run_id: str) -> NotFoundError:
    return NotFoundError(f"no run {run_id!r}", hint="check the spelling", run_id=run_id)
