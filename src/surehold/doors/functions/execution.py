"""One execution of a workflow: begun or resumed, then completed, failed, waiting."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.core.context import during
from surehold.core.policy import Ending, RunFacts, ending_of
from surehold.core.records import OPEN_FROM, OVER, Door, Effect, Header
from surehold.core.state import Lineage, Place, read_metadata
from surehold.core.values import copied, encode
from surehold.doors.events import Event, Listener, emitter
from surehold.doors.functions.children import cancel_children, wait_for_children
from surehold.doors.functions.typed import Typed
from surehold.doors.result import RunResult, Spent, spent_on
from surehold.doors.resume import no_run
from surehold.engine.hooks import HookManager, redacted
from surehold.engine.journal import CheckpointDraft, Note, unknown_run
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs import (
    COMPENSATED,
    KEPT,
    OpenRun,
    Waiting,
    draft_at,
    open_notes,
    permitted,
    taken_over,
    try_again,
    waiting_of,
    warn_in_doubt,
)
from surehold.engine.runs.effects import AwaitsAll, calls_behind, failure_facts, failure_in
from surehold.engine.runs.messages import tell_end
from surehold.engine.runs.positions import CURRENT_STEP, OPEN_RUN, RUNS_HERE, CallOrder, Recorded
from surehold.errors import Cancelled, EncodeError, UsageError

logger = logging.getLogger("surehold.checkpoint")

_REDACTED = b"[redacted:"
_LONG = 64
"""Recorded calls from which on a checkpoint is a keyframe, so that they are read once only."""
PARENT, DEADLINE = "parent_run", "deadline"
"""Metadata of a run: the one that began it, and the time after which it is cancelled."""
GENERATION, _STEPS = "generation", "steps_before"
"""Metadata of a run that has begun anew: how often, and the recorded calls before."""
_FORGETS_EVERY = 32
"""Generations after which the records of earlier ones are freed."""


class FunctionRun:
    """A run of a workflow that this process executes."""

    def __init__(
        self,
        name: str,
        version: int,
        typed: Typed,
        run_id: str,
        *,
        storage: Target,
        lease_seconds: float,
        wait: bool,
        awaited: bool,
        signals: bool | None,
        on_event: Callable[[Event], None] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.version = version
        self.arguments: Mapping[str, Any] = {}
        self._name = name
        self._typed = typed
        self._wait = wait
        self._awaited = awaited
        self._opened = OpenRun(run_id, Door("function", version), storage, lease_seconds)
        self._opened.expects_waits = not wait
        self._signals = signals
        self.stop = self._opened.stop
        observers = (Listener(on_event),) if on_event is not None else ()
        self._emit = emitter(observers, name, {"run_id": run_id}, self._opened.stored_head)
        self._entry_point: Callable[[], str] = str
        self._first = 0
        self._seconds = deadline
        self._parent = ""
        """The run that began this one."""
        self._generation = 0
        """The number of times that the run has begun anew."""
        self._steps = 0
        """The recorded calls before that."""
        self._saved = Spent()
        self._order: CallOrder | None = None
        self._values: dict[str, Any] = {}

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._opened.run_id

    def open(
        self, arguments: Mapping[str, Any] | None, entry_point: Callable[[], str]
    ) -> RunResult[Any] | None:
        """Take the run and load it, or begin it with *arguments*; its result if completed.

        Without arguments the run must be there; with other ones than it began with, it is a
        `UsageError`.
        """
        opened = self._opened
        self._entry_point = entry_point
        opened.open()
        try:
            return self._load(arguments)
        except BaseException:
            opened.close()
            raise

    def _load(self, arguments: Mapping[str, Any] | None) -> RunResult[Any] | None:
        opened = self._opened
        state = opened.load()
        if state is None:
            if arguments is None:
                raise no_run(self.run_id)
            self._begin(arguments)
            return None
        newest = opened.newest
        assert newest is not None
        self._values, self.version = _own_values(newest, state.to_dict())
        self._parent = newest.metadata.get(PARENT, "")
        opened.deadline = newest.metadata.get(DEADLINE)
        self._generation = newest.metadata.get(GENERATION, 0)
        if self._generation:  # it has other arguments by now
            arguments = None
            self._steps = newest.metadata.get(_STEPS, 0)
            opened.ledger.mail.earlier = opened.earlier_messages
        self._check(newest, arguments)
        self.arguments = copied(self._values["arguments"])
        if arguments is not None:  # the stored ones may be redacted
            self.arguments = copied(_storable(self._typed, arguments))
        if newest.status in OVER:
            result = _ended(newest, self._values, self._typed)
            opened.close()
            return result
        if arguments is None and _REDACTED in encode(dict(self.arguments)):
            logger.warning(
                "run %s continues with redacted arguments (run(..., run_id=%r) with the arguments"
                " that it began with continues it with those)",
                self.run_id,
                self.run_id,
            )
        self._first = newest.metadata.get(OPEN_FROM, newest.seq)
        if self._generation:
            opened.branch = self._first
        notes = opened.ledger.notes()
        self._saved = _spent(notes)
        self._order = self._ordered(
            Recorded(note.content.id for note in notes if note.kind not in KEPT)
        )
        return None

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        stored = copied(_storable(self._typed, arguments))
        self._values, self.arguments = {"arguments": stored}, copied(stored)
        if self._seconds is not None:
            self._opened.deadline = time.time() + self._seconds
        self._save("routine", "running", {})
        first = self._opened.newest
        if first is None:
            raise UsageError(
                f"run {self.run_id!r} could not be saved",
                hint="a workflow needs its first checkpoint: see the log for why it failed",
            )
        self._first = first.seq
        self._order = self._ordered(Recorded())

    def begin_again(self, called: tuple[tuple[Any, ...], dict[str, Any]]) -> CallOrder:
        """Begin the run anew with other arguments; the order of its calls."""
        opened, order = self._opened, self._order
        assert order is not None
        opened.leaving.check_body()
        arguments = _storable(self._typed, self._typed.bind(*called))
        stored = copied(arguments)
        cancel_children(opened)
        opened.children.clear()
        warn_in_doubt(self.run_id, opened.ledger.notes())
        self._values, self.arguments = {"arguments": stored}, copied(stored)
        self._generation, self._steps = self._generation + 1, self._steps + order.count
        self._first, self._order = 0, None
        self._save("routine", "running", {}, notes=[*opened.ledger.renew()])
        assert opened.newest is not None
        self._first = opened.branch = opened.newest.seq
        if self._generation % _FORGETS_EVERY == 0:
            opened.forget_before(self._first)
        self._order = self._ordered(Recorded())
        return self._order

    def _ordered(self, recorded: Recorded) -> CallOrder:
        return CallOrder(
            self._opened,
            recorded,
            awaited=self._awaited,
            frees=not self._wait,
            mark=self.mark,
            emit=self._emit,
        )

    def _check(self, newest: Header, arguments: Mapping[str, Any] | None) -> None:
        _check_name(self._name, newest)
        if arguments is not None:
            hooks = self._opened.hook_manager
            _check_same(self._name, self._typed, self.run_id, self._values, arguments, hooks)

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Let signals and the scope around it stop the run in this block."""
        return self.stop.watching(self.run_id, signals=self._signals)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Have calls in this context recorded.

        A run that was asked to stop before does not begin: it may have no other step to stop at.
        """
        if self._order is not None:
            self._order.check_stop()
            if self._opened.is_cancelled and not self._opened.ledger.entries:
                raise Cancelled(f"run {self.run_id!r} was cancelled before it was begun")
        self._opened.leaving.enter()
        RUNS_HERE.append(self.run_id)
        if self._awaited:
            self._opened.awaited.watch()
        try:
            with during(CURRENT_STEP, None), during(OPEN_RUN, self._order), AwaitsAll():
                yield
            self._opened.leaving.check_body()
            if self._order is not None:
                self._order.check_end()
        except BaseException as error:
            ended = self._opened.awaited.unwatch(error)
            if ended is None or ended is error:
                raise
            raise ended from error
        finally:
            RUNS_HERE.remove(self.run_id)
            self._opened.awaited.unwatch(None)

    def close(self) -> None:
        """Let others have the run."""
        self._opened.close()

    # Endings

    @property
    def is_left(self) -> bool:
        """True if the run waits or stops: calls in progress are finished first."""
        return self.stop.reason is not None or self._opened.leaving.signal is not None

    def reason(self, error: BaseException) -> BaseException:
        """The exception that decides how the run ends, after user code ended with *error*."""
        return self.stop.translated(self._opened.leaving.ended_by(error))

    def complete(self, value: Any) -> RunResult[Any]:
        """Save what the function returned."""
        with self.stop.unit("its last call"):
            return self._complete(value)

    def _complete(self, value: Any) -> RunResult[Any]:
        try:
            value = self._typed.returned(value)
            stored = self._typed.storable(value)
        except (EncodeError, UsageError) as error:
            if isinstance(error, EncodeError):
                error.add_note(f"workflow {self._name} returned what cannot be stored")
            self.end_with(error)
            raise
        self._values["result"] = stored
        result = self._result("completed", returned=value)
        cancel_children(self._opened)
        self._save("final", "completed", {"usage": msgspec.to_builtins(result.usage)})
        self._tell_parent()
        self._say("run.completed", step=result.step)
        return result

    def end_with(self, error: BaseException) -> RunResult[Any] | None:
        """Save how the function ended; a result, or None if *error* is to be raised."""
        with self.stop.unit("its last call"):
            return self._end_with(error)

    def _end_with(self, error: BaseException) -> RunResult[Any] | None:
        stopping = self._order is not None and self._order.stopped
        facts = RunFacts(
            run_id=self.run_id,
            lost=self._opened.lost is not None,
            stopping=stopping,
            followed=self._opened.leaving.followed(calls_behind(error)),
        )
        ending = ending_of(error, facts)
        if ending.gives == "lost":
            raise taken_over(self.run_id, self._opened.lost) from error
        if ending.gives == "result":
            return self._left(ending, error)
        if ending.saves:
            try:
                if not (ending.compensated and self._opened.failed_already()):
                    self._save_ending(ending, error)
            except Exception as failure:  # whatever it is, it must not hide the user's error
                error.add_note(f"surehold: the end of run {self.run_id!r} was not saved: {failure}")
            else:
                way = f"{self._name}.resume({self.run_id!r}) continues the run"
                if ending.compensated:
                    way = try_again(self.run_id, calls_behind(error))
                error.add_note(f"surehold: {way}")
        return None

    def _left(self, ending: Ending, error: BaseException) -> RunResult[Any]:
        """Save that the run waits or was stopped, with the questions that it asks."""
        ledger = self._opened.ledger
        asked = [note for note in ledger.waiting() if note.kind == "question"]
        if ending.status != "waiting":
            self._save_ending(ending, error, asked)
            return self._result(ending.status)
        self._save(ending.kind, ending.status, {}, notes=asked)
        waiting = tuple(self._limited(waiting_of(self.run_id, one)) for one in ledger.waiting())
        told = [{"id": one.id, "kind": one.kind, "name": one.name} for one in waiting]
        self._say("run.waiting", waiting=told)
        return self._result("waiting", waiting=waiting)

    def _limited(self, waiting: Waiting) -> Waiting:
        """The wait, which the run's deadline ends."""
        if self._opened.deadline is None:
            return waiting
        end = datetime.fromtimestamp(self._opened.deadline, UTC)
        until = end if waiting.until is None else min(waiting.until, end)
        return msgspec.structs.replace(waiting, until=until)

    def _tell_parent(self) -> None:
        if self._parent:
            tell_end(self._opened.manager, self.run_id, self._parent)

    def waits_for_children(self) -> Generator[Callable[[], Any], Any, None]:
        """The waits for the runs that this one must not end before."""
        return wait_for_children(self._opened)

    def _say(self, kind: str, **facts: Any) -> None:
        if self._emit is not None:
            self._emit(kind, facts)

    def _save_ending(
        self, ending: Ending, error: BaseException, notes: Sequence[Note] = ()
    ) -> None:
        failed = ending.kind == "recovery"
        failure = failure_facts(error, self._opened.hook_manager) if failed else None
        facts: dict[str, Any] = {"error": type(error).__name__}
        if ending.compensated:
            facts[COMPENSATED] = True
        permitted = self._permissions(error) if ending.permits else []
        if ending.status == "cancelled":
            cancel_children(self._opened)
        self._save(ending.kind, ending.status, facts, notes=[*notes, *permitted], extra=failure)
        if ending.status == "cancelled":
            self._tell_parent()
        kind = (
            "failed" if failed else "interrupted" if ending.status != "cancelled" else "cancelled"
        )
        self._say(f"run.{kind}", **facts)

    def _permissions(self, error: BaseException) -> list[Note]:
        """Notes that permit one more attempt of the failed calls that *error* came from.

        These are the calls that raised it, and failed ones created after the first of them. A
        failure that the function had handled before stays recorded.
        """
        raised = set(calls_behind(error))
        made: list[Note] = []
        for note in self._opened.ledger.effects():
            entry: Effect = note.content
            if entry.id in raised or (made and entry.error is not None):
                made.append(msgspec.structs.replace(note, content=permitted(entry), metadata={}))
        return made

    def mark(self, status: str) -> None:
        """Save that the run waits, or runs again, while this process stays with it."""
        self._save("routine", status, {})

    def _save(
        self,
        kind: str,
        status: str,
        metadata: dict[str, Any],
        *,
        notes: list[Note] | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        open_from: dict[str, Any] = (
            {OPEN_FROM: self._first} if self._first and status not in OVER else {}
        )
        if self._parent:
            open_from[PARENT] = self._parent
        if self._opened.deadline is not None:
            open_from[DEADLINE] = self._opened.deadline
        if self._generation:
            open_from |= {GENERATION: self._generation, _STEPS: self._steps}
        calls = self._order.count if self._order is not None else 0
        place = Place(
            run_id=self.run_id,
            name=self._name,
            step=self._steps + calls,
            kind=kind,
            status=status,
            metadata=read_metadata({**metadata, **open_from}),
        )
        deferred = self._opened.ledger.deferred()
        draft = draft_at(
            place,
            self._values,
            self._opened.lineage,
            door=Door("function", self.version, self._entry_point()),
            extra=extra,
            schema=0,
            whole=calls > _LONG or not self._first,
        )
        saved = self._opened.save(draft, notes=(*deferred, *(notes or ())), force=True)
        if not saved:
            self._opened.ledger.defer_again(deferred)
        elif status == "completed":
            warn_in_doubt(self.run_id, self._opened.ledger.notes())

    def _result(self, status: str, **facts: Any) -> RunResult[Any]:
        return RunResult(
            run_id=self.run_id,
            status=status,
            step=self._steps + (self._order.count if self._order is not None else 0),
            usage=_spent(self._opened.ledger.notes()),
            saved=self._saved,
            **facts,
        )


def _storable(typed: Typed, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: typed.storable(value, key) for key, value in arguments.items()}


def _own_values(newest: Header, values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Arguments and result of a run, and the version of the workflow it began with.

    Versions before the header named it kept the name and the version beside them.
    """
    if newest.door is not None:
        return values, newest.door.version
    return {k: values[k] for k in ("arguments", "result") if k in values}, values["version"]


def _check_name(name: str, newest: Header) -> None:
    if newest.name != name:
        door = newest.door or Door("function")
        raise door.refusal(newest.run_id, newest.name, f"workflow {name!r}")


def _check_same(
    name: str,
    typed: Typed,
    run_id: str,
    kept: Mapping[str, Any],
    arguments: Mapping[str, Any],
    hooks: HookManager | None,
) -> None:
    """Raise a `UsageError` if the run was begun with other arguments."""
    now = _storable(typed, arguments)
    if encode(dict(kept["arguments"])) not in (encode(now), encode(redacted(now, hooks))):
        raise UsageError(
            f"run {run_id!r} was begun with other arguments",
            hint=f"{name}.resume({run_id!r}) continues it; a new run needs another id",
            run_id=run_id,
        )


def first_draft(
    name: str,
    version: int,
    typed: Typed,
    run_id: str,
    arguments: Mapping[str, Any],
    entry_point: str,
    parent: str = "",
    deadline: float | None = None,
) -> CheckpointDraft:
    """The first checkpoint of a run that another process is to execute."""
    values = {"arguments": _storable(typed, arguments)}
    told: dict[str, Any] = {PARENT: parent} if parent else {}
    if deadline is not None:
        told[DEADLINE] = time.time() + deadline
    place = Place(
        run_id=run_id,
        name=name,
        step=0,
        kind="routine",
        status="running",
        metadata=read_metadata(told),
    )
    door = Door("function", version, entry_point)
    return draft_at(place, values, Lineage(), door=door, schema=0)


def check_begun(
    name: str,
    typed: Typed,
    run_id: str,
    arguments: Mapping[str, Any],
    storage: Target,
) -> None:
    """Raise a `UsageError` if the stored run began in another way than asked for."""
    with opened(storage) as manager:
        newest = manager.reader.newest_of(run_id)
        if newest is not None:
            loaded = manager.reader.load(newest)
            loaded.door.check("function", run_id, newest.name)
            _check_name(name, newest)
            if newest.metadata.get(GENERATION):
                return  # it has other arguments by now
            kept = loaded.graph_state().to_dict()
            _check_same(name, typed, run_id, kept, arguments, manager.hook_manager)


def look_up(
    name: str,
    typed: Typed,
    run_id: str,
    manager: CheckpointManager,
) -> RunResult[Any]:
    """The state of a run: its result if it is completed, and what it waits for."""
    reader = manager.reader
    run = reader.known(run_id)
    newest = reader.newest(run)
    if newest is None:
        raise unknown_run(run_id)
    loaded = reader.load(newest)
    values = loaded.graph_state().to_dict()
    loaded.door.check("function", run_id, newest.name)
    _check_name(name, newest)
    if newest.status in OVER:
        return _ended(newest, values, typed)
    ledger = open_notes(reader, run)
    return RunResult(
        run_id=run_id,
        status=newest.status,
        step=max(newest.step, *(note.step for note in ledger.notes()), 0),
        usage=_spent(ledger.notes()),
        waiting=tuple(waiting_of(run_id, note) for note in ledger.waiting()),
        error=failure_in(newest, loaded.extras[-1]),
    )


def _ended(newest: Header, values: Mapping[str, Any], typed: Typed) -> RunResult[Any]:
    """The result of a run that is completed or cancelled."""
    return RunResult(
        run_id=newest.run_id,
        status=newest.status,
        returned=typed.read(values.get("result")) if newest.status == "completed" else None,
        step=newest.step,
        usage=msgspec.convert(dict(newest.metadata.get("usage", {})), Spent),
    )


def _spent(notes: list[Note]) -> Spent:
    return spent_on(note.content for note in notes if note.kind == "effect")
