"""Queries and updates: others read a run, or change it and get an answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from surehold.core.context import during
from surehold.core.driving import drive, drive_async, settled
from surehold.core.policy import check_above_zero
from surehold.core.records import OVER, Answer, Header
from surehold.core.state import Place, read_metadata
from surehold.core.values import decode, encode
from surehold.doors.functions.recorded import write_once
from surehold.doors.functions.waits import receive
from surehold.doors.resume import load_resumable
from surehold.engine.commit import in_event_loop, save_draft
from surehold.engine.journal import unknown_run
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager, Target, opened
from surehold.engine.runs import draft_at
from surehold.engine.runs.effects import to_await
from surehold.engine.runs.messages import deliver, message_note
from surehold.engine.runs.positions import ASKED, ONLY_REPLAYED, call_context
from surehold.errors import ConflictError, RunError, Signal, UsageError
from surehold.storage.base import RecordQuery
from surehold.storage.memory import MemoryStorage

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5

_HANDLERS: ContextVar[dict[str, Callable[..., Any]] | None] = ContextVar(
    "surehold_handlers", default=None
)
"""The handlers of the run that is replayed for a query."""


def on_query(name: str, handler: Callable[..., Any]) -> None:
    """Let *handler* answer ``surehold.query(run_id, name)`` from here on.

    It reads the variables of the workflow, and calls nothing recorded. Another handler of the same
    name replaces it.
    """
    handlers = _HANDLERS.get()
    if handlers is not None:
        handlers[name] = handler


def query(run_id: str, name: str, /, *args: Any, storage: Target = None) -> Any:
    """Ask a run of a workflow, and return what its `on_query` handler *name* gives.

    The run is replayed here up to its last record, in memory: no process need have it, a run that
    has ended answers too, and nothing is recorded or called. This process must have the code.
    """
    handlers: dict[str, Callable[..., Any]] = {}
    answers: list[Callable[[], Any]] = []

    def ask() -> None:
        if name in handlers:
            answers[:] = [_outcome(handlers[name], args)]

    with opened(storage) as manager, MemoryStorage() as memory:
        newest = manager.reader.newest_of(run_id)
        if newest is None:
            raise unknown_run(run_id)
        door = manager.reader.door(newest)
        if door.kind != "function" or not door.entry_point:
            raise UsageError(
                f"run {run_id!r} has no workflow that can be asked",
                hint="surehold cat shows the state of a graph or a loop",
                run_id=run_id,
            )
        manager.copy_run(run_id, memory)
        resumable = load_resumable(door.entry_point)
        copied = resumable.manager_on(memory)
        try:
            if newest.status in OVER:
                _reopen(copied, newest)
            with during(_HANDLERS, handlers), during(ONLY_REPLAYED, True), during(ASKED, ask):
                resumable.over(copied).resume_sync(run_id)
                ask() if not answers else None
        finally:
            copied.finish()
    if not answers:
        known = ", ".join(sorted(handlers)) or "nothing"
        raise UsageError(
            f"run {run_id!r} does not answer {name!r}, but {known}",
            hint="surehold.on_query(name, handler) in the workflow",
            run_id=run_id,
        )
    return answers[0]()


def _outcome(handler: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """The result of *handler* now; its exception is for whoever asks."""
    try:
        with during(ASKED, None):
            value = handler(*args)
    except Exception as error:
        return partial(_raise, error)
    except Signal:
        told = "a query handler makes a recorded call"
        return partial(_raise, UsageError(told, hint="let it read variables only"))
    return lambda: value


def _raise(error: Exception) -> None:
    raise error


def _reopen(copied: AsyncCheckpointManager, newest: Header) -> None:
    """Make a copied run that has ended one that can be replayed."""
    manager = CheckpointManager.of(copied.face)
    earlier = [
        header
        for header in manager.storage.headers(RecordQuery(run_id=newest.run_id))
        if header.seq < newest.seq
    ]
    first = min((one.metadata.get("open_from", one.seq) for one in earlier[:1]), default=0)
    loaded = manager.reader.load(newest)
    state = loaded.graph_state()
    metadata = {name: value for name, value in newest.metadata.items() if name != "usage"}
    place = Place(
        run_id=newest.run_id,
        name=newest.name,
        step=newest.step,
        kind="routine",
        status="running",
        metadata=read_metadata(metadata | {"open_from": first}),
    )
    values = {"arguments": state.to_dict()["arguments"]}
    draft = draft_at(place, values, state.lineage, door=loaded.door, schema=0, whole=True)
    manager.perform(save_draft(manager.face, draft, force=True))


# Updates


class Update:
    """A change that somebody asks for, and waits to be answered."""

    def __init__(self, id: str, value: Any) -> None:
        self.id = id
        self.value = value

    def reply(self, value: Any = None) -> Any:
        """Answer it: ``surehold.update`` returns *value*. Awaited in async code."""
        return self._answer({"value": value})

    def refuse(self, reason: str) -> Any:
        """Refuse it: ``surehold.update`` raises a `RunError`. Awaited in async code."""
        return self._answer({"refused": reason})

    def _answer(self, told: dict[str, Any]) -> Any:
        entry = Answer(id=_answer_id(self.id), value=msgspec.Raw(encode(told)))
        return write_once("reply", lambda run: entry)


def receive_update(
    name: str, *, check: Callable[[Any], object] | None = None, timeout: float | None = None
) -> Any:
    """Take the next `Update` of *name*, which is to be answered with its `reply`.

    A value for which *check* raises a `ValueError` is refused with its text, and the next one is
    awaited. After *timeout* seconds without one it is a `TimeoutError`. Awaited in async code.
    """
    steps = _receiving(name, check, timeout)
    context = call_context()
    if in_event_loop() if context is None else context.in_async:
        return to_await(f"receive_update({name!r})", drive_async(steps, settled))
    return drive(steps, lambda step: step())


def _receiving(
    name: str, check: Callable[[Any], object] | None, timeout: float | None
) -> Generator[Callable[[], Any], Any, Update]:
    while True:
        told = yield partial(receive, _topic(name), timeout=timeout)
        update = Update(told["id"], told["value"])
        if check is None:
            return update
        try:
            check(update.value)
        except ValueError as error:
            yield partial(update.refuse, str(error))
        else:
            return update


def update(
    run_id: str,
    name: str,
    value: Any = None,
    *,
    timeout: float | None = None,
    idempotency_key: str | None = None,
    storage: Target = None,
) -> Any:
    """Ask a run for a change that `receive_update` takes, and return the answer.

    The request and the answer are records of the run: another call with the same *idempotency_key*
    gets the same answer. A refused one is a `RunError`, one without an answer after *timeout*
    seconds a `TimeoutError`: the run may still take it.
    """
    check_above_zero(timeout=timeout)
    id = idempotency_key or str(uuid4())
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE
    with opened(storage) as manager:
        told = _answer_to(manager, run_id, id)
        if told is None:
            asked = {"id": id, "value": value}
            deliver(manager, run_id, message_note(_topic(name), asked, id))
        while told is None:
            run = manager.reader.run(run_id)
            over = run is None or run.status in OVER
            told = _answer_to(manager, run_id, id)
            if told is None and over:
                raise ConflictError(f"run {run_id!r} ended without an answer", run_id=run_id)
            if told is None and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {run_id!r} did not answer {name!r} within {timeout:g} s")
            if told is None:
                time.sleep(pause)
                pause = min(pause * 1.2, _LONGEST_PAUSE)
    if "refused" in told:
        raise RunError(f"run {run_id!r} refused {name!r}: {told['refused']}", run_id=run_id)
    return told["value"]


def _topic(name: str) -> str:
    return f"update {name}"


def _answer_id(id: str) -> str:
    return f"update {id}"


def _answer_to(manager: CheckpointManager, run_id: str, id: str) -> dict[str, Any] | None:
    wanted = {"answers": _answer_id(id)}
    found = RecordQuery(run_id=run_id, kind="answer", metadata=wanted, notes=True, limit=1)
    for header in manager.storage.headers(found):
        for record in manager.storage.read(run_id, first=header.seq, last=header.seq):
            body = manager.reader.sealer.open(record)
            told: dict[str, Any] = decode(bytes(msgspec.json.decode(body, type=Answer).value))
            return told
    return None
