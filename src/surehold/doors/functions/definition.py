"""`@surehold.workflow` and `@surehold.step`: durable functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

from surehold.core.context import during
from surehold.core.driving import drive, drive_async
from surehold.core.policy import RetryOptions, check_above_zero, read_policy, refuse_options
from surehold.core.records import check_run_id, digest_of
from surehold.doors.events import Event, EventStream
from surehold.doors.functions.children import ChildHandle, ParentClose, awaited_of
from surehold.doors.functions.continuing import Continued
from surehold.doors.functions.execution import FunctionRun, check_begun, first_draft, look_up
from surehold.doors.functions.transactions import in_transaction
from surehold.doors.functions.typed import Typed
from surehold.doors.result import RunResult
from surehold.doors.resume import Resumable, entry_point_of
from surehold.doors.submit import (
    AsyncRunHandle,
    QueueOptions,
    RunHandle,
    StartOptions,
    begin_queued,
)
from surehold.engine.commit import in_thread
from surehold.engine.journal import Note
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs.effects import (
    Called,
    CallPolicy,
    EffectCall,
    InDoubt,
    check_policy,
    perform,
    perform_now,
    to_await,
)
from surehold.engine.runs.messages import deliver, key_at, message_note
from surehold.engine.runs.positions import (
    OPEN_RUN,
    CallContext,
    CallOrder,
    call_context,
    recorded_here,
    recorded_value,
    recording_context,
    warn_beside,
)
from surehold.errors import ShapeError, UsageError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ended = TypeVar("Ended")
"""The result of a run, or what is awaited for it."""
Handle = TypeVar("Handle")
"""The handle to a run, or what is awaited for it."""
_Started = tuple[FunctionRun, RunResult[Any] | None]

_OPTIONS = ("run_id", "storage", "wait", "lease_seconds", "on_event", "signals", "deadline")
"""Parameters of `Workflow.run` itself, which a workflow's function cannot have."""
_START_OPTIONS = (
    "queue",
    "priority",
    "key",
    "delay",
    "idempotency_key",
    "parent_close",
    "deadline",
)
"""Parameters of `Workflow.start` itself; `Workflow.options` is for functions that have one."""


# Steps


class StepOptions(RetryOptions, total=False):
    """The options of `step`."""

    name: str | None
    in_doubt: InDoubt | None
    probe: Callable[[str], Any] | None
    record_arguments: bool | None


class _Recorded:
    """A function whose calls are recorded."""

    def __init__(self, function: Callable[..., Any], policy: CallPolicy) -> None:
        self.function = function
        self.call_policy = policy
        _look_like(self, function)

    def __repr__(self) -> str:
        return f"<step {self.call_policy.name}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A step that is a method, bound to its object."""
        made: Any = self
        return self if instance is None else functools.partial(made, instance)


class Step(_Recorded, Generic[P, R]):
    """A plain function whose calls are recorded; made by `surehold.step`."""

    function: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; in a run, record its outcome or return the recorded one."""
        context = recording_context()
        run = context.run if context is not None else None
        if context is None or run is None:
            if context is None:
                warn_beside(self.call_policy.name)
            return self.function(*args, **kwargs)
        call = EffectCall(context, run, self.call_policy)
        made: R = perform_now(call, None, Called(self.function, args, kwargs))
        return made


class AsyncStep(_Recorded, Generic[P, R]):
    """An async function whose calls are recorded; made by `surehold.step`."""

    function: Callable[P, Awaitable[R]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Take the next position in the run, and give what is to be awaited."""
        context = recording_context()
        run = context.run if context is not None else None
        if context is None or run is None:
            return _awaiting(self.function(*args, **kwargs))
        what = f"step {self.call_policy.name!r}"
        _check_async(context, what)
        context.check_leaving()  # in this task, whichever awaits the call
        call = EffectCall(context, run, self.call_policy)
        called = Called(self.function, args, kwargs)
        call.locate(None, called.digest())
        return to_await(what, perform(call, None, called))


def _look_like(made: Any, function: Any) -> None:
    """Let `inspect` take *made* for a function, async if *function* is.

    Frameworks await what `inspect.iscoroutinefunction` calls one, and read its signature and
    docstring; `inspect` knows a function by these attributes.
    """
    functools.update_wrapper(made, function)
    while isinstance(function, functools.partial):
        function = function.func
    for name in ("__name__", "__code__", "__defaults__", "__kwdefaults__"):
        if name not in vars(made) and hasattr(function, name):
            setattr(made, name, getattr(function, name))


def _check_async(context: CallContext, what: str) -> None:
    if context.awaited is False:
        raise UsageError(
            f"{what} is async, and what calls it is not",
            hint="make the workflow or the run async, or the step plain",
        )


async def _awaiting(made: Awaitable[T]) -> T:
    return await made


class _MakesTransaction(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Step[P, R]: ...


class _MakesStep(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(*, transaction: object, **options: Unpack[StepOptions]) -> _MakesTransaction: ...
@overload
def step(**options: Unpack[StepOptions]) -> _MakesStep: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    transaction: object = None,
    **options: Unpack[StepOptions],
) -> Any:
    """Make a function a step: in a run its outcome is recorded, not computed again.

    The fields of a `RetryPolicy` (*retries*, *backoff*, *timeout*, ...) may be given, or one as
    *policy*. All attempts have one idempotency key, and failed ones are recorded.
    If the process died during the call, or an attempt took longer than *timeout*, *in_doubt*
    decides: ``retry`` (the default) calls again with the same key. A step that changes the outside
    world, and must not do so twice, has ``in_doubt="ask"``, as a `surehold.effect` has by default.
    With *record_arguments* the arguments are kept too, short and without secrets, for people to
    read. Outside a run a step is a plain call.

    With *transaction* (a SQLAlchemy engine or sessionmaker, a `psycopg_pool` pool, or a function
    that opens a connection) the function gets the connection or session as its first argument, and
    what it writes is committed together with its outcome: killed at any moment, it has happened
    exactly when its rows are there.

    >>> @step(retries=3)
    ... def double(number: int) -> int:
    ...     return 2 * number
    >>> double(4)
    8
    """
    refuse_options("step", options, ("transaction", *StepOptions.__annotations__))
    in_doubt, probe = options.get("in_doubt"), options.get("probe")
    attempts = read_policy(options)

    def make(function: Callable[..., Any]) -> Any:
        called = _name_of(function, "step", options.get("name"))
        typed = Typed(function)
        rules = CallPolicy(
            name=called,
            in_doubt=check_policy(called, in_doubt, probe, default="retry"),
            probe=probe,
            record_arguments=options.get("record_arguments"),
            attempts=attempts,
            write=typed.write,
            read=typed.read,
            kind="step",
        )
        kind: Any = AsyncStep if inspect.iscoroutinefunction(function) else Step
        if transaction is not None:
            if rules.in_doubt != "retry":
                raise UsageError(
                    f"step {called!r} has transaction= and in_doubt={rules.in_doubt!r}",
                    hint="leave in_doubt out: the database says whether the step happened",
                )
            function = in_transaction(function, transaction, typed.storable)
        return kind(function, rules)

    return make if function is None else make(function)


def _name_of(function: Any, what: str, name: str | None) -> str:
    """The name of a step or workflow; a `UsageError` if it cannot be one."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, Step | AsyncStep):
        raise UsageError(
            f"{function.call_policy.name!r} is a step already",
            hint=f"put @surehold.{what} on a def",
        )
    if isinstance(function, _Definition):
        raise UsageError(
            f"{function.name!r} is a workflow already", hint=f"put @surehold.{what} on a def"
        )
    if not callable(function):
        raise UsageError(f"{function!r} cannot be a {what}", hint=f"put @surehold.{what} on a def")
    called = name or str(getattr(function, "__name__", ""))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{called} yields, and a {what} returns once", hint="return a list of the items"
        )
    if type(called) is not str or not called:
        raise UsageError(f"a {what}'s name is {called!r}", hint=f"@surehold.{what}(name=...)")
    return called


# Workflows


class Submitting(Generic[P, Handle]):
    """A workflow with options of its `start`; see `Workflow.options`."""

    def __init__(self, submit: Callable[[Any, Any], Handle]) -> None:
        self._submit = submit

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Queue the run for a worker, with all of these as arguments of the workflow."""
        return self._submit(args, kwargs)


class _Definition(ABC, Generic[P, R, Ended, Handle]):
    """The common base of plain and async workflows, which differ in what is awaited."""

    _awaited: ClassVar[bool] = False

    def __init__(
        self, function: Callable[..., Any], name: str, version: int, storage: Target
    ) -> None:
        self.function = function
        self.name = name
        self.version = version
        self.storage = storage
        self._typed = Typed(function)
        taken = [one for one in _OPTIONS if one in self._typed.signature.parameters]
        if taken:
            raise UsageError(
                f"workflow {name!r} has a parameter {taken[0]!r}",
                hint=f"choose another name: run() takes {', '.join(_OPTIONS)} itself",
            )
        _look_like(self, function)
        others = _versions.setdefault((name, function.__module__), {})
        others[version] = self

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Self:
        """Refuse a workflow as a method: a resume would not have its object."""
        if instance is not None:
            raise UsageError(
                f"workflow {self.name!r} is a method, and a resume has no object for it",
                hint="make it a function, with what it needs as arguments",
            )
        return self

    @property
    def entry_point(self) -> str:
        """``module:name``, by which another process finds the workflow, or ""."""
        return entry_point_of(self, self.function.__module__)

    @property
    def own_manager(self) -> CheckpointManager | None:
        """The manager that the workflow was defined with, if it was one."""
        return self.storage if isinstance(self.storage, CheckpointManager) else None

    def as_resumable(self) -> Resumable:
        """The object that resumes runs of the workflow by their ids."""
        from surehold.doors.functions.resumable import FunctionRuns

        return FunctionRuns(self)  # type: ignore[arg-type]

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions of the workflow in its module, whose runs can be resumed."""
        return tuple(sorted(_versions[self.name, self.function.__module__]))

    # A call without options is checked against the function's own parameters. Python's types cannot
    # add a keyword to parameters, so a call with an option is checked only when it is made.
    @overload
    def run(self, *args: P.args, **kwargs: P.kwargs) -> Ended: ...
    @overload
    def run(self, *args: Any, run_id: str | None, **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, storage: Target, **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, wait: bool, **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, on_event: Callable[[Event], None], **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, signals: bool | None, **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, lease_seconds: float, **options: Any) -> Ended: ...
    @overload
    def run(self, *args: Any, deadline: float | None, **options: Any) -> Ended: ...
    def run(  # type: ignore[misc]
        self,
        *args: Any,
        run_id: str | None = None,
        storage: Target = None,
        wait: bool = True,
        lease_seconds: float = LEASE_SECONDS,
        on_event: Callable[[Event], None] | None = None,
        signals: bool | None = None,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> Ended:
        """Begin the run, or continue it if it was begun before with the same arguments.

        The result of a completed run is returned again. Without *wait*, a run that comes to a
        `surehold.sleep` or `wait_for` is left `waiting`. What the function raises is raised here,
        the run being saved as failed: `resume` makes the call that failed again, unless recorded
        calls followed it. *on_event* is called with every event, see `stream`. On SIGINT or
        SIGTERM the recorded call in progress is finished, then the run stops; ``signals=False``
        leaves signals to the program. *deadline* seconds after its begin the run is cancelled, as
        by `RunHandle.cancel`.
        """
        called, rest = (args, kwargs), (lease_seconds, wait, on_event, signals, deadline)
        return self._execute(partial(self._start, run_id, called, storage, *rest))

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle: ...
    @overload
    def start(self, *args: Any, run_id: str | None, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, storage: Target, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, queue: str, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, priority: int, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, key: str | None, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, delay: float | None, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, idempotency_key: str | None, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, parent_close: ParentClose, **options: Any) -> Handle: ...
    @overload
    def start(self, *args: Any, deadline: float | None, **options: Any) -> Handle: ...
    def start(  # type: ignore[misc]
        self,
        *args: Any,
        run_id: str | None = None,
        storage: Target = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        delay: float | None = None,
        idempotency_key: str | None = None,
        parent_close: ParentClose = "leave",
        deadline: float | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Queue the run for a worker, and give a handle to it. Nothing is executed here.

        The run and its place in the *queue* are stored in one commit. Of the ready runs of a queue
        those of higher *priority* start first; those of different *key* s take turns. *delay* is
        the number of seconds to wait before the start, *deadline* the number after which the run
        is cancelled, executed or not. A second call with the same *run_id*
        or *idempotency_key* gives a handle to the same run; other arguments are a `UsageError`.

        In a run the child has an id of its own that a replay gives again: it is begun once, and
        `RunHandle.result` waits for it in the run's journal. When the workflow that began it
        completes or is cancelled, *parent_close* decides: ``leave`` it alone, ``cancel`` it, or
        ``wait``, which completes the workflow only after it has ended.
        """
        self._check_parameters()
        chosen = self.options(
            run_id=run_id,
            storage=storage,
            queue=queue,
            priority=priority,
            key=key,
            delay=delay,
            idempotency_key=idempotency_key,
            parent_close=parent_close,
            deadline=deadline,
        )
        return chosen.start(*args, **kwargs)

    def options(
        self,
        *,
        run_id: str | None = None,
        storage: Target = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        delay: float | None = None,
        idempotency_key: str | None = None,
        parent_close: ParentClose = "leave",
        deadline: float | None = None,
        by: str = "",
    ) -> Submitting[P, Handle]:
        """The workflow with options of `start`, whose names its parameters may have.

        ``charge.options(queue="mail").start("order-7", key="k1")`` passes *key* to the function.
        The journal names *by* as the person or program that asked for the run.
        """
        if parent_close not in get_args(ParentClose):
            raise UsageError(
                f"parent_close is {parent_close!r}", hint=f"one of {get_args(ParentClose)}"
            )
        check_above_zero(deadline=deadline)
        submit = partial(
            self._submit,
            deadline=deadline,
            queue=queue,
            priority=priority,
            key=key,
            delay=delay,
            idempotency_key=idempotency_key,
            by=by,
        )

        def start(args: Any, kwargs: Any) -> Handle:
            context = call_context()
            run = context.run if context is not None else None
            where = self.storage if storage is None else storage
            if run is None:
                return self._submitted(partial(submit, args, kwargs, run_id=run_id, where=where))
            if parent_close != "leave" and not isinstance(context, CallOrder):
                raise UsageError(
                    f"parent_close={parent_close!r} needs a workflow",
                    hint="start the run in a @surehold.workflow",
                )

            at = run.manager if where is None else where
            recorded = recorded_here(f"start {self.name}")

            def submit_at(place: str) -> str:
                chosen = run_id
                if run_id is None and idempotency_key is None:
                    chosen = f"{run.run_id}.{self.name}-{digest_of(place.encode())[:12]}"
                return submit(args, kwargs, run_id=chosen, where=at, parent=run.run_id).run_id

            def begin() -> RunHandle[Any]:
                # A replay begins no child anew that has ended and was removed.
                look = partial(_look, self)
                child = ChildHandle[Any](recorded(submit_at), at, look, self._typed, parent_close)
                run.children.append(child)
                return child

            return self._submitted(begin)

        return Submitting(start)

    def start_or_send(
        self,
        topic: str,
        value: Any,
        /,
        *args: Any,
        run_id: str,
        storage: Target = None,
        queue: str = "default",
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Send a message to a run, which is begun if it is not there.

        It is then queued, with its message, in one commit. The arguments after *value* are those
        of the workflow; a run that is there keeps its own. *idempotency_key* is that of the
        message, see `surehold.send`.
        """
        message_note(topic, value, idempotency_key)
        options = QueueOptions(run_id=run_id, queue=queue, priority=priority, key=key)
        where = self.storage if storage is None else storage

        def send_at(place: str) -> None:
            message = message_note(topic, value, idempotency_key or key_at(place))
            with opened(where) as manager:
                if not manager.storage.has_run(run_id):
                    self._begin_queued(manager, run_id, options, args, kwargs, message)
                else:
                    deliver(manager, run_id, message)

        def submit() -> RunHandle[Any]:
            recorded_value("send", send_at)
            return RunHandle(run_id, where, partial(_look, self))

        return self._submitted(submit)

    def _begin_queued(
        self,
        manager: CheckpointManager,
        run_id: str,
        options: QueueOptions,
        args: Any,
        kwargs: Any,
        message: Note,
    ) -> None:
        entry, arguments = self.entry_point, self._typed.bind(args, kwargs)
        draft = first_draft(self.name, self.version, self._typed, run_id, arguments, entry)
        if not begin_queued(manager, draft, entry, self.version, options, message):
            deliver(manager, run_id, message)  # another process has just begun it

    def check_start(self, *args: Any, **kwargs: Any) -> None:
        """Raise an error if `start` with a run id would refuse these arguments."""
        self._check_parameters()
        options: Any = {name: kwargs.pop(name) for name in _START_OPTIONS if name in kwargs}
        for name in ("parent_close", "deadline"):
            options.pop(name, None)
        QueueOptions(run_id=self.name, **options)
        for name, value in self._typed.bind(args, kwargs).items():
            self._typed.storable(value, name)

    @overload
    def stream(self, *args: P.args, **kwargs: P.kwargs) -> EventStream[RunResult[R]]: ...
    @overload
    def stream(
        self, *args: Any, run_id: str | None, **options: Any
    ) -> EventStream[RunResult[R]]: ...
    @overload
    def stream(self, *args: Any, storage: Target, **options: Any) -> EventStream[RunResult[R]]: ...
    @overload
    def stream(self, *args: Any, wait: bool, **options: Any) -> EventStream[RunResult[R]]: ...
    def stream(  # type: ignore[misc]
        self,
        *args: Any,
        run_id: str | None = None,
        storage: Target = None,
        wait: bool = True,
        **kwargs: Any,
    ) -> EventStream[RunResult[R]]:
        """`run`, as the events that happen: ``async for event in nightly.stream(pages)``.

        A plain function runs on a thread of its own. See `StateGraph.stream`.
        """
        run: Any = partial(self.run, *args, run_id=run_id, storage=storage, wait=wait, **kwargs)
        return EventStream(run if self._awaited else partial(asyncio.to_thread, run))

    def resume(
        self,
        run_id: str,
        *,
        storage: Target = None,
        wait: bool = True,
        lease_seconds: float = LEASE_SECONDS,
        on_event: Callable[[Event], None] | None = None,
        signals: bool | None = None,
    ) -> Ended:
        """Continue a run with the arguments that it was begun with."""
        return self._execute(
            partial(self._start, run_id, None, storage, lease_seconds, wait, on_event, signals)
        )

    @abstractmethod
    def _execute(self, start: Callable[[], _Started]) -> Ended:
        """Start a run, call the function, and save how that ended."""

    @abstractmethod
    def _submitted(self, submit: Callable[[], RunHandle[Any]]) -> Handle:
        """The handle to a run that *submit* stores."""

    def _start(
        self,
        run_id: str | None,
        called: tuple[tuple[Any, ...], dict[str, Any]] | None,
        storage: Target,
        lease_seconds: float,
        wait: bool,
        on_event: Callable[[Event], None] | None,
        signals: bool | None,
        deadline: float | None = None,
    ) -> _Started:
        """Open a run that is *called* with these arguments, or with those that it has."""
        arguments = None if called is None else self._typed.bind(*called)
        check_above_zero(lease_seconds=lease_seconds, deadline=deadline)
        if type(wait) is not bool:
            raise UsageError(f"wait is {wait!r}", hint="give True or False")
        if run_id is None and arguments is not None:
            run_id = str(uuid.uuid4())
        run_id = check_run_id("" if run_id is None else run_id)
        execution = FunctionRun(
            self.name,
            self.version,
            self._typed,
            run_id,
            storage=self.storage if storage is None else storage,
            lease_seconds=lease_seconds,
            wait=wait,
            awaited=self._awaited,
            signals=signals,
            on_event=on_event,
            deadline=deadline,
        )
        return execution, execution.open(arguments, lambda: self.entry_point)

    def _submit(
        self,
        args: Any,
        kwargs: Any,
        where: Target,
        parent: str = "",
        deadline: float | None = None,
        **wanted: Unpack[StartOptions],
    ) -> RunHandle[Any]:
        """Save the run with its arguments in a queue, and give a handle."""
        options = QueueOptions(**wanted)
        arguments = self._typed.bind(args, kwargs)
        run_id = options.id_for(self.name)
        entry, told = self.entry_point, (parent, deadline)
        draft = first_draft(self.name, self.version, self._typed, run_id, arguments, entry, *told)
        if not begin_queued(where, draft, entry, self.version, options):
            check_begun(self.name, self._typed, run_id, arguments, where)
        return RunHandle(run_id, where, partial(_look, self))

    def _check_parameters(self) -> None:
        """Raise a `UsageError` if the function has a parameter that `start` takes itself."""
        taken = [name for name in _START_OPTIONS if name in self._typed.signature.parameters]
        if taken:
            raise UsageError(
                f"workflow {self.name!r} has a parameter {taken[0]!r}, which start() takes itself",
                hint=f"{self.name}.options(queue=...).start(...) passes it to the workflow",
            )

    def _call(self, execution: FunctionRun) -> Any:
        """Call the function of the version that the run began with."""
        versions = _versions[self.name, self.function.__module__]
        # Another function of the module may have taken the same name and version.
        began = self if execution.version == self.version else versions.get(execution.version)
        if began is None:
            there = ", ".join(map(str, sorted(versions)))
            raise ShapeError(
                f"run {execution.run_id!r} began with version {execution.version} of workflow"
                f" {self.name!r}, and there is only version {there}",
                hint=f"keep the old function: @workflow(name={self.name!r},"
                f" version={execution.version})",
                run_id=execution.run_id,
            )
        args, kwargs = began._typed.call_with(execution.arguments)
        return began.function(*args, **kwargs)

    def _child(self, context: CallOrder) -> tuple[EffectCall, CallOrder]:
        policy = CallPolicy(
            name=self.name,
            in_doubt="retry",
            write=self._typed.write,
            read=self._typed.read,
        )
        id, inner = context.child(self.name, self._awaited)
        call = EffectCall(context, context.run, policy)
        call.locate_at(id)
        call.is_unit = False
        return call, inner


_versions: dict[tuple[str, str], dict[int, _Definition[Any, Any, Any, Any]]] = {}
"""All versions of each workflow, by its name and module."""


class Workflow(_Definition[P, R, RunResult[R], RunHandle[R]]):
    """A durable plain function; made by `surehold.workflow`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function: in another workflow as its child, else without recording."""
        context = call_context()
        if not isinstance(context, CallOrder):
            return self.function(*args, **kwargs)  # type: ignore[no-any-return]
        call, inner = self._child(context)

        def body(*args: Any, **kwargs: Any) -> Any:
            with during(OPEN_RUN, inner):
                value = self.function(*args, **kwargs)
                inner.check_left()
                return value

        made: R = perform_now(call, None, Called(body, args, kwargs))
        return made

    def result(self, run_id: str, *, storage: Target = None) -> RunResult[R]:
        """Look a run up without executing anything."""
        return _looked_up(self, run_id, self.storage if storage is None else storage)

    def _submitted(self, submit: Callable[[], RunHandle[Any]]) -> RunHandle[R]:
        return submit()

    def _call_again(self, execution: FunctionRun) -> Any:
        """Call the function, and again whenever it begins its run anew."""
        while True:
            try:
                value = self._call(execution)
                drive(execution.waits_for_children(), lambda call: call())
                return value
            except Continued as again:
                OPEN_RUN.set(execution.begin_again(again.arguments))

    def _execute(self, start: Callable[[], _Started]) -> RunResult[R]:
        execution, done = start()
        if done is not None:
            return done
        with execution.watching():
            try:
                try:
                    with execution.active():
                        value = self._call_again(execution)
                except BaseException as error:
                    ended = execution.reason(error)
                    waiting = execution.end_with(ended)
                    if waiting is not None:
                        return waiting
                    if ended is error:
                        raise
                    raise ended from error
                return execution.complete(value)
            finally:
                execution.close()


class AsyncWorkflow(
    _Definition[P, R, Coroutine[Any, Any, RunResult[R]], Coroutine[Any, Any, AsyncRunHandle[R]]]
):
    """A durable async function; made by `surehold.workflow`. Its methods are awaited."""

    _awaited = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function: in another workflow as its child, else without recording."""
        context = call_context()
        if not isinstance(context, CallOrder):
            return _awaiting(self.function(*args, **kwargs))
        _check_async(context, f"workflow {self.name!r}")
        call, inner = self._child(context)

        async def body(*args: Any, **kwargs: Any) -> Any:
            with during(OPEN_RUN, inner):
                value = await self.function(*args, **kwargs)
                inner.check_left()
                return value

        return to_await(f"workflow {self.name!r}", perform(call, None, Called(body, args, kwargs)))

    async def result(self, run_id: str, *, storage: Target = None) -> RunResult[R]:
        """See `Workflow.result`."""
        storage = self.storage if storage is None else storage
        return await asyncio.to_thread(_looked_up, self, run_id, storage)

    async def _submitted(self, submit: Callable[[], RunHandle[Any]]) -> AsyncRunHandle[R]:
        return awaited_of(await asyncio.to_thread(submit))

    async def _call_again(self, execution: FunctionRun) -> Any:
        """Call the function, and again whenever it begins its run anew."""
        while True:
            try:
                value = await self._call(execution)
                await drive_async(execution.waits_for_children(), lambda call: call())
                return value
            except Continued as again:
                OPEN_RUN.set(await in_thread(execution.begin_again, again.arguments))

    async def _execute(self, start: Callable[[], _Started]) -> RunResult[R]:
        started: list[_Started] = []
        try:
            await in_thread(lambda: started.append(start()))
            execution, done = started[0]
            if done is not None:
                return done
            with execution.watching():
                try:
                    with execution.active(), execution.stop.cancellable():
                        value = await self._call_again(execution)
                except BaseException as error:
                    ended = execution.reason(error)
                    if execution.is_left:
                        await execution.stop.until_idle()
                    waiting = await in_thread(execution.end_with, ended)
                    if waiting is not None:
                        return waiting
                    if ended is error:
                        raise
                    raise ended from error
                return await in_thread(execution.complete, value)
        finally:
            if started and started[0][1] is None:
                await in_thread(started[0][0].close)


def _looked_up(
    workflow: _Definition[Any, R, Any, Any], run_id: str, storage: Target
) -> RunResult[R]:
    check_run_id(run_id)
    with opened(storage) as manager:
        return _look(workflow, manager, run_id)


def _look(
    workflow: _Definition[Any, R, Any, Any], manager: CheckpointManager, run_id: str
) -> RunResult[R]:
    return look_up(workflow.name, workflow._typed, run_id, manager)


class _MakesWorkflow(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(  # type: ignore[overload-overlap]
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncWorkflow[P, R]: ...
@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str | None = None, version: int = 1, storage: Target = None
) -> _MakesWorkflow: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    storage: Target = None,
    **unknown: Any,
) -> Any:
    """Make a function durable: its `run` resumes after the last recorded call.

    Calls of steps, effects, child workflows, `surehold.now` and the like are recorded in the order
    in which they are created; a resume replays them, so the code between them must do the same
    each time. Another call at a recorded position is a `ShapeError`. Runs that began with an older
    *version* finish on the function that was defined with the same *name* and that version, or on
    the old side of `surehold.patched`.

    >>> @workflow
    ... def nightly(pages: list[str]) -> str:
    ...     return " ".join(step(str.upper)(page) for page in pages)
    >>> nightly.run(["a", "b"], run_id="nightly-11-16", storage="memory://").value
    'A B'
    """
    refuse_options("workflow", unknown, ("name", "version", "storage"))
    if type(version) is not int or version < 0:
        raise UsageError(f"version is {version!r}", hint="give a whole number from 0")

    def make(function: Callable[..., Any]) -> Any:
        called = _name_of(function, "workflow", name)
        kind: Any = AsyncWorkflow if inspect.iscoroutinefunction(function) else Workflow
        return kind(function, called, version, storage)

    return make if function is None else make(function)
