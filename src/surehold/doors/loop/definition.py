"""`surehold.run`: a durable run for people who have their own loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import Token
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from surehold.core.cards import card
from surehold.core.context import undo_set
from surehold.core.policy import Clockwork, RunFacts, Triggers, check_above_zero, ending_of
from surehold.core.records import OPEN_FROM, Door, check_run_id, digest_of
from surehold.core.state import NO_METADATA, Place, read_metadata
from surehold.core.values import put_back
from surehold.engine.commit import in_thread
from surehold.engine.journal import Note
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import Target
from surehold.engine.runs import COMPENSATED, OpenRun, draft_at, taken_over, try_again
from surehold.engine.runs import in_doubt as is_in_doubt
from surehold.engine.runs.effects import (
    AwaitsAll,
    Called,
    CallPolicy,
    EffectCall,
    InDoubt,
    Usage,
    args_digest,
    calls_behind,
    check_policy,
    failure_facts,
    failure_in,
    perform,
    perform_now,
    to_await,
)
from surehold.engine.runs.positions import (
    CURRENT_STEP,
    OPEN_RUN,
    RUNS_HERE,
    CallContext,
    LoopProgress,
    RunBody,
    RunContext,
    StepContext,
    call_context,
    more_items,
    not_there_again,
    other_items,
    under,
)
from surehold.errors import Cancelled, EncodeError, ShapeError, StorageError, UsageError

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("surehold.checkpoint")

_NOT_SAVED = "surehold: the state at this point was not saved"
_LOOPS = "each"
"""The metadata of a checkpoint that keeps the progress of `Run.each`."""


def run(
    run_id: str,
    *,
    storage: Target = None,
    name: str = "",
    every: int | None = None,
    every_seconds: float | None = None,
    lease_seconds: float = LEASE_SECONDS,
    signals: bool | None = None,
) -> Run:
    """A run that continues where it was when it is started again.

    Use it with ``with`` or ``async with``. Inside, `Run.state` is an ordinary dict that holds
    what was last saved; `Run.call` records what a call returns, `Run.each` resumes after the last
    completed item, and `Run.checkpoint` ends a step. A step is saved at once or, with *every*
    (steps) or *every_seconds*, when one of them is due.

    An exception saves a checkpoint with status failed, which keeps its text, and is raised again
    (with the last state that was saved, if the one at this point holds what cannot be stored);
    ctrl-C saves one with status interrupted, a call in doubt one with status waiting; the end of
    the block saves the final one, with status completed. A run that is completed says so in
    `Run.completed`: its calls give what was recorded, a new one is a `ShapeError`, nothing is
    saved, and its state is the final one. On SIGINT or SIGTERM a recorded call in
    progress is finished first; ``signals=False`` leaves signals to the program.

    >>> with run("nightly-11-16", storage="memory://") as job:
    ...     for page in job.each(["a", "b", "c"]):
    ...         job.state[page] = job.call(str.upper, page)
    >>> job.step, job.status, job.state
    (3, 'completed', {'a': 'A', 'b': 'B', 'c': 'C'})
    """
    check_above_zero(every=every, every_seconds=every_seconds, lease_seconds=lease_seconds)
    if not isinstance(name, str):
        raise UsageError(f"name is {name!r}", hint="give a text, or leave it out")
    return Run(
        check_run_id(run_id),
        storage=storage,
        name=name,
        triggers=Triggers(frequency=every, interval=every_seconds),
        lease_seconds=lease_seconds,
        signals=signals,
    )


class Run:
    """One durable execution of a loop; made by `surehold.run`."""

    def __init__(
        self,
        run_id: str,
        *,
        storage: Target,
        name: str,
        triggers: Triggers,
        lease_seconds: float,
        signals: bool | None,
    ) -> None:
        self.run_id = run_id
        self.name = name
        self._state: dict[str, Any] = {}
        self._touched = False
        """True if the code may have changed the state since it was loaded."""
        self.step = 0
        self.status = "running"
        self.resumed = False
        """True if an earlier start of this run had saved something."""
        self.attempt = 1
        """The number of starts of the run, including this one."""
        self.checkpoint_id: str | None = None
        """The newest checkpoint."""
        self._storage = storage
        self._triggers = triggers
        self._every_step = triggers.every_step
        self._lease_seconds = lease_seconds
        self._signals = signals
        self._watching = contextlib.ExitStack()
        self._clock = Clockwork(triggers)
        self._run: OpenRun | None = None
        self._context: RunContext | None = None
        self._awaited = False
        self._awaits = AwaitsAll()
        self._past: list[tuple[str, int]] = []
        """Bodies whose calls up to a step are settled by the next save."""
        self._unsaved: StorageError | None = None
        """The last failure to save a step that has ended."""
        self._told = ""
        """The failure that the newest checkpoint keeps."""
        self._tokens: tuple[Token[StepContext | None], Token[CallContext | None]] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The values that are saved: those last saved, until the code changes them.

        A resume executes the code outside of completed items again, up to the place where the
        state was saved. There the state has its saved values again.
        """
        self._touched = True
        return self._state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"run.state is {values!r:.40}", hint="give a dict, or set its keys")
        self._state, self._touched = values, True

    @property
    def completed(self) -> bool:
        """True if the run had ended well; its state is then the final one."""
        return self.status == "completed"

    # Calls

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call *fn* and record its result; after a crash the result is returned again.

        If the process died during the call, *fn* is called again with the same idempotency key;
        `effect` is for what must not happen twice. A `surehold.step` brings its own retries, time
        limit and policy. Inside ``async with`` the call is awaited.
        """
        policy = getattr(fn, "call_policy", None)
        if not isinstance(policy, CallPolicy):
            name = getattr(fn, "__name__", "") or type(fn).__name__
            policy = CallPolicy(name=name, in_doubt="retry", kind="step")
        called = Called(getattr(fn, "function", fn), args, kwargs)
        return cast(T, self._perform(policy, None, called))

    def effect(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        in_doubt: InDoubt | None = None,
        key: str | None = None,
        probe: Callable[[str], Any] | None = None,
        usage: Usage | None = None,
        record_arguments: bool | None = None,
        **kwargs: Any,
    ) -> T:
        """Call *fn*, which changes the outside world, and record its outcome.

        The intent is recorded first. If the process died during the call, a person is asked,
        unless *in_doubt* or *probe* decides; *usage* tells what it cost, and *record_arguments*
        whether the arguments are kept for people to read; see `surehold.effect`.
        Positions are counted within the block or the item of `each`, by name, from the newest
        `checkpoint`: a call that a checkpoint has settled is made again if the code comes there
        again. Inside ``async with`` the call is awaited.
        """
        asked = check_policy(name, in_doubt, probe)
        policy = CallPolicy(
            name=name,
            in_doubt=asked,
            probe=probe,
            usage=usage,
            record_arguments=record_arguments,
        )
        return cast(T, self._perform(policy, key, Called(fn, args, kwargs)))

    def _perform(self, policy: CallPolicy, key: str | None, called: Called) -> Any:
        (opened, context), fn = self._opened(), called.fn
        if not callable(fn):
            raise UsageError(f"{fn!r} cannot be called", hint="give a function, then its arguments")
        here = call_context()
        inner = here if here is not None and here.run is opened else context
        call = EffectCall(inner, opened, policy)
        if self._awaited:
            return to_await(repr(policy.name), perform(call, key, called))
        if inspect.iscoroutinefunction(fn):
            raise UsageError(
                f"{getattr(fn, '__qualname__', fn)} is async, and this run blocks",
                hint="use `async with surehold.run(...)` and await the call",
            )
        return perform_now(call, key, called)

    # Loops

    def each(self, items: Iterable[T] | AsyncIterable[T]) -> Each[T]:
        """Iterate over *items*, beginning after the last one that was completed.

        An item is completed when the loop asks for the next one: that ends a step, and saves the
        state with the progress if that is due. Give the same items in the same order every time,
        new ones at the end; other ones are a `ShapeError`, and so are new ones in a completed run.
        An item that was left, by ``break`` say, is executed again by a resume. Use it with ``for``
        or ``async for``; async iterables need the latter. A set is refused.
        """
        if isinstance(items, set | frozenset):
            raise UsageError(
                "the items of each() are a set, which has another order in each process",
                hint="give a list: sorted(items)",
            )
        return Each(self, items)

    def _item_done(self, loop: LoopProgress, path: str, digest: str) -> None:
        opened, context = self._opened()
        context.check_left()
        if opened.over:
            raise context.leave(more_items(self.run_id, loop.done))
        if context.saved_in is not None:
            raise context.leave(not_there_again(self.run_id))
        loop.done, loop.digest, loop.item = loop.done + 1, digest, None
        self.step += 1
        context.step = self.step
        self._past.append((path, self.step))
        if self._every_step or self._is_due():
            try:
                self._save("routine", "running")
            except StorageError as error:  # the loop has ended, and cannot ask for it again
                raise opened.leaving.mark(error) from error.__cause__
        if not opened.is_cancelled:
            opened.stop.check()

    def _catch_up(self) -> None:
        """Undo what code that was executed again has changed in the state."""
        opened, context = self._opened()
        context.saved_in = None
        if self._touched:
            saved = opened.rollback()
            put_back(self._state, saved.to_dict() if saved is not None else {})

    # Saving

    def checkpoint(
        self, *, node: str | None = None, metadata: dict[str, Any] | None = None, **values: Any
    ) -> str | None:
        """End a step with these values set in the state; save if that is due.

        Returns the checkpoint's id, or None if it was not due. The calls recorded so far in this
        block, or in this item of `each`, are settled: positions begin anew. Values that cannot be
        stored are an `EncodeError`: the step has then not ended, and the state is what it was
        before the call. A completed run saves nothing: other values than its final ones are a
        `UsageError`.
        """
        opened, context = self._opened()
        if opened.leaving.signals or opened.stop.raised:
            context.check_left()
        if node is not None and not isinstance(node, str):
            raise UsageError(f"node is {node!r}", hint="give the name of the step, a text")
        if opened.over or context.saved_in is not None:  # the code made it before
            return self._passed(opened, context, values)
        before = {key: self._state[key] for key in values if key in self._state}
        self._state.update(values)
        self.step = context.step = self.step + 1
        path, body = "", None
        if context.moved:
            path, body = context.path, context.copy()
            context.restart()
        self._past.append((path, self.step))
        saved = None
        try:
            if self._every_step or self._is_due(node):
                saved = self._save("routine", "running", node, metadata)
        except EncodeError:
            for key in values:
                self._state.pop(key, None)
            self._state.update(before)
            self.step = context.step = self.step - 1
            self._past.pop()
            if body is not None:
                context.put_back(body)
            raise
        if opened.stop.reason is not None and not opened.is_cancelled:
            opened.stop.check()
        return saved

    def _passed(self, opened: OpenRun, context: RunContext, values: dict[str, Any]) -> str | None:
        """Pass a checkpoint that an earlier execution made."""
        if opened.over:
            saved = opened.rollback()
            final = saved.to_dict() if saved is not None else {}
            for key, value in values.items():
                if key not in final or not _is_same(value, final[key]):
                    raise UsageError(
                        f"run {self.run_id!r} is completed, with another {key} than this one",
                        hint="look at run.completed, or start a run with another run_id",
                    )
        self._state.update(values)
        context.recount()
        return self.checkpoint_id

    def _is_due(self, node: str | None = None) -> bool:
        return self._clock.due(self.step, time.monotonic(), node=node) is not None

    def _opened(self) -> tuple[OpenRun, RunContext]:
        if self._run is None or self._context is None:
            raise UsageError("this run is not open", hint="use it inside its with block")
        return self._run, self._context

    def _save(
        self,
        kind: str,
        status: str,
        node: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        extra: dict[str, str] | None = None,
        permits: bool = False,
    ) -> str | None:
        opened, context = self._run, self._context
        assert opened is not None and context is not None
        ledger = opened.ledger
        done = status == "completed"

        def past(note: Note) -> bool:
            return done or self._is_past(note)

        kept = ledger.carried(permits=permits, past=past) if ledger.entries else ()
        facts = dict(metadata or {})
        loops = context.saved() if context.moved else None
        if loops is not None:
            facts[_LOOPS] = loops
        if done and ledger.entries:  # for the next start, which gets their outcomes
            kept = ledger.deferred()
            if opened.newest is not None:
                facts[OPEN_FROM] = opened.newest.seq
        place = Place(
            run_id=self.run_id,
            name=self.name,
            step=self.step,
            node=node,
            kind=kind,
            status=status,
            metadata=read_metadata(facts) if facts else NO_METADATA,
        )
        # The same state may fail again, with another text.
        force = extra is not None and extra["error"] != self._told
        try:
            draft = draft_at(place, self._state, opened.lineage, door=opened.door, extra=extra)
            with opened.stop.unit(f"step {self.step}"):
                saved = opened.save(draft, notes=kept, force=force)
        except StorageError as unsaved:
            self._unsaved = unsaved
            raise
        if saved:
            self.checkpoint_id, self._told = saved, extra["error"] if extra else ""
            opened.begin = None
            if ledger.entries:
                ledger.saved(past, self.run_id)
            self._past.clear()
        if not self._every_step:
            self._clock.saved(self.step, time.monotonic())
        self.status = status
        return saved

    def _is_past(self, note: Note) -> bool:
        """True if a step that the next save completes has settled the note."""
        if is_in_doubt(note):
            return False
        return any(note.step <= step and under(note.node or "", path) for path, step in self._past)

    def _begin(self) -> None:
        """Save the empty state that the run began with, for the notes that follow."""
        opened = self._run
        assert opened is not None
        place = Place(run_id=self.run_id, name=self.name)
        draft = draft_at(place, {}, opened.lineage, door=opened.door)
        self.checkpoint_id = opened.save(draft) or None

    def _begin_listed(self) -> None:
        """Have the run listed from its first item on, and not only once that is completed."""
        opened = self._run
        assert opened is not None
        begin, opened.begin = opened.begin, None
        if begin is not None:
            begin()

    # Opening and closing

    def _open(self) -> None:
        if self._run is not None:
            raise UsageError("this run is open already")
        opened = OpenRun(self.run_id, Door("loop"), self._storage, self._lease_seconds)
        try:
            opened.open()
            self._run = opened
            self._restore(opened)
        except BaseException:
            self._run = None
            opened.close()
            raise

    def _restore(self, opened: OpenRun) -> None:
        self.attempt = max(opened.epoch, 1)
        state = opened.load()
        loops: Any = None
        if state is not None:
            loaded = opened.loaded
            assert loaded is not None
            self.state = state.to_dict()
            self.step, self.name = state.step, state.name or self.name
            self.checkpoint_id = state.checkpoint_id
            if state.status == "cancelled":
                raise Cancelled(f"run {self.run_id!r} was cancelled", run_id=self.run_id)
            opened.over = state.status == "completed"
            self.status = "completed" if opened.over else "running"
            self.resumed = True
            self._told = failure_in(loaded.header, loaded.extras[-1])
            loops = state.metadata.get(_LOOPS)
        else:
            opened.begin = self._begin
        self._context = RunContext(opened, self.step, loops, blocks=not self._awaited)
        self._touched = False
        self._clock = Clockwork(self._triggers, step=self.step, now=time.monotonic())

    def _close(self, error: BaseException | None) -> None:
        opened = self._run
        assert opened is not None
        try:
            if opened.over:
                self._catch_up()
            else:
                self._end(error)
        finally:
            self._run = None
            opened.close()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._save_broken_off(error)
            return
        assert self._context is not None
        self._context.check_end()
        try:
            self._save("final", "completed")
        except EncodeError as unstorable:
            self._save_broken_off(unstorable)
            raise
        for number in self._context.left_items():
            logger.warning(
                "run %s is completed; its each() was left in item %d, and no later item executed",
                self.run_id,
                number,
            )

    def _save_broken_off(self, error: BaseException) -> None:
        """Save the reason why the run ended here, with the state of its last step.

        A step that was broken off is executed again, as after a kill, so nothing that it changed
        is kept. One that could not be saved has ended: it is saved now if that is possible.
        """
        opened = self._run
        assert opened is not None
        followed = opened.leaving.followed(calls_behind(error))
        facts = RunFacts(run_id=self.run_id, lost=opened.lost is not None, followed=followed)
        ending = ending_of(error, facts)
        if ending.gives == "lost":
            raise taken_over(self.run_id, opened.lost) from error
        if not ending.saves:
            return
        if ending.compensated:
            error.add_note(f"surehold: {try_again(self.run_id, calls_behind(error))}")
            if opened.failed_already():
                return
        failed = ending.kind == "recovery"
        failure = failure_facts(error, opened.hook_manager) if failed else None
        told: dict[str, Any] = {}
        if ending.status != "waiting":
            told = {"error": type(error).__name__}
            told |= {COMPENSATED: True} if ending.compensated else {}
        try:
            if error is not self._unsaved:
                self._go_back(opened)
            self._save(
                ending.kind, ending.status, metadata=told, extra=failure, permits=ending.permits
            )
        except Exception as failure:  # whatever it is, it must not hide the user's error
            error.add_note(f"{_NOT_SAVED}: {failure}")
        else:
            if ending.status in ("failed", "interrupted") and not ending.compensated:
                way = f"run {self.run_id!r} continues after step {self.step}"
                error.add_note(f"surehold: {way} when its program is started again")

    def _go_back(self, opened: OpenRun) -> None:
        """Take the last state that was saved; an empty one, if there is none."""
        saved = opened.rollback()
        self.state = saved.to_dict() if saved is not None else {}
        self.step = saved.step if saved is not None else 0
        loops = saved.metadata.get(_LOOPS) if saved is not None else None
        self._past.clear()
        self._context = RunContext(opened, self.step, loops, blocks=not self._awaited)

    def _enter(self) -> Self:
        RUNS_HERE.append(self.run_id)
        # A graph that is executed inside the block is a run of its own.
        assert self._run is not None
        stop = self._run.stop
        self._run.leaving.enter()
        self._watching.enter_context(stop.watching(self.run_id, signals=self._signals))
        if self._awaited:
            self._watching.enter_context(stop.cancellable())
        self._tokens = CURRENT_STEP.set(None), OPEN_RUN.set(self._context)
        self._awaits.__enter__()
        return self

    def _exit(self, error: BaseException | None) -> BaseException | None:
        """Leave the run; the error that the block ended with, or ends with now."""
        tokens, self._tokens = self._tokens, None
        if tokens is None:
            return error
        RUNS_HERE.remove(self.run_id)
        undo_set(CURRENT_STEP, tokens[0], None)
        undo_set(OPEN_RUN, tokens[1], self._context)
        try:
            self._awaits.__exit__(None, error, None)
        except UsageError as forgotten:
            return forgotten
        return error

    def _reason(self, error: BaseException | None) -> BaseException | None:
        """The exception that decides how the run ends, after its block ended with *error*."""
        opened, context = self._run, self._context
        if opened is None or context is None:
            return error
        if opened.over:
            return error or opened.leaving.signal
        if error is None and opened.leaving.signal is None and context.saved_in is not None:
            return not_there_again(self.run_id)
        ended = opened.leaving.signal if error is None else opened.leaving.ended_by(error)
        return ended if ended is None else opened.stop.translated(ended)

    def __enter__(self) -> Self:
        self._awaited = False
        before = self._run
        try:
            self._open()
            return self._enter()
        except BaseException:  # Ctrl-C may come at any moment
            opened, self._run = self._run, before
            if opened is not None and opened is not before:
                opened.close()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._watching.pop_all():
            ended = error
            try:
                ended = self._reason(self._exit(error))
            finally:
                self._close(ended)
            if ended is not error and ended is not None:
                raise ended

    async def __aenter__(self) -> AwaitedRun:
        self._awaited = True
        try:
            await in_thread(self._open)
        except asyncio.CancelledError:
            if self._run is not None:
                await asyncio.to_thread(self._run.close)
                self._run = None
            raise
        assert self._run is not None
        self._run.awaited.watch()
        return cast("AwaitedRun", self._enter())

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._watching.pop_all():
            ended = self._reason(
                self._exit(self._run.awaited.unwatch(error) if self._run else error)
            )
            opened = self._run
            if opened is not None and (opened.stop.reason or opened.leaving.signal):
                await opened.stop.until_idle()
            await in_thread(self._close, ended)
            if ended is not error and ended is not None:
                raise ended

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.status} at step {self.step}>"

    def _repr_html_(self) -> str:
        """The run with its state as a card, in a notebook."""
        return card(self.run_id, self.status, [f"step {self.step}"], self._state)


if TYPE_CHECKING:

    class AwaitedRun(Run):
        """A `Run` as a type checker sees it inside ``async with``: its calls are awaited."""

        @overload  # type: ignore[override]
        def call(
            self, fn: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def call(
            self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, T]: ...
        def call(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any: ...
        @overload  # type: ignore[override]
        def effect(
            self, name: str, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, **options: Any
        ) -> Coroutine[Any, Any, T]: ...
        @overload
        def effect(
            self, name: str, fn: Callable[..., T], *args: Any, **options: Any
        ) -> Coroutine[Any, Any, T]: ...
        def effect(self, name: str, fn: Any, *args: Any, **options: Any) -> Any: ...


class _Walk(Generic[T]):
    """One pass of `Run.each` over its items."""

    _item: RunBody | None = None
    """The item that is being executed."""

    def __init__(self, run: Run, items: Any) -> None:
        self._run, self._items = run, items
        self._loop: LoopProgress | None = None
        self._count, self._digest, self._over = 0, "", False

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T:
        loop = self._entered()
        if self._finishes():
            self._run._item_done(loop, self._path, self._digest)
        for item in self._items:
            if self._begins(loop, item):
                self._run._begin_listed()
                return item  # type: ignore[no-any-return]
            if self._over:
                break
        self._end(loop)
        raise StopIteration

    async def __anext__(self) -> T:
        loop = self._entered()
        if self._finishes():
            self._context.check_left()  # in this task, which may be cancelled
            await asyncio.to_thread(self._run._item_done, loop, self._path, self._digest)
        async for item in self._items:
            if self._begins(loop, item):
                if self._opened.begin is not None:
                    await asyncio.to_thread(self._run._begin_listed)
                return item  # type: ignore[no-any-return]
            if self._over:
                break
        self._end(loop)
        raise StopAsyncIteration

    def __del__(self) -> None:
        if self._item is not None:  # a loop that is left drops its iterator
            self._context.leave_item(self._item)

    def _entered(self) -> LoopProgress:
        if self._loop is None:
            self._opened, self._context = self._run._opened()
            self._loop, self._number = self._context.enter_loop()
            self._done = self._loop.done
            self._needed = self._done + (self._loop.item is not None)
        return self._loop

    def _finishes(self) -> bool:
        """Leave the body of an item; False if the loop begins."""
        item, self._item = self._item, None
        if item is None:
            return False
        if not self._context.is_inside(item):
            wrong = UsageError(
                f"two each() of run {self._run.run_id!r} take turns: one asks for its next item"
                " in the middle of the other",
                hint="loop over run.each(zip(a, b)) instead of zip(run.each(a), run.each(b)), and"
                " drop the iterator of an inner loop before the outer item ends",
            )
            raise self._context.leave(wrong)
        self._context.check_end()
        self._context.leave_item(item)
        return True

    def _begins(self, loop: LoopProgress, item: Any) -> bool:
        """Count *item* and begin it, unless an earlier execution completed it."""
        self._count += 1
        self._digest = _chained(self._digest, item)
        if self._count <= self._done:
            self._check(self._count < self._done or self._digest == loop.digest)
            return False
        opened, context = self._opened, self._context
        context.check_left()
        opened.check_lease()
        context.check_cancel("")
        if loop.item is not None:
            self._check(loop.item.digest == self._digest)
        elif opened.over:
            self._check(False, more_items(opened.run_id, self._done))
        elif context.saved_in is not None and context.saved_in is not loop:
            self._check(False, not_there_again(opened.run_id))
        if self._over:
            return False
        if context.saved_in is loop:
            self._run._catch_up()
        self._path = context.enter_item(loop, self._number, self._digest)
        self._item = loop.item
        return True

    def _end(self, loop: LoopProgress) -> None:
        """Check that no item is missing which an earlier execution had."""
        self._check(self._count >= self._needed)
        if self._context.saved_in is loop:
            self._run._catch_up()

    def _check(self, fits: bool, error: ShapeError | None = None) -> None:
        if fits:
            return
        if self._opened.over and self._context.restarted:
            self._over = True  # checkpoint() has settled the loop, which cannot be compared
        else:
            over = self._opened.over
            error = error or other_items(self._run.run_id, self._done, over=over)
            raise self._context.leave(error)


class Each(Generic[T]):
    """The items of a loop that are left; made by `Run.each`."""

    def __init__(self, run: Run, items: Iterable[T] | AsyncIterable[T]) -> None:
        self._run = run
        self._items = items

    def __iter__(self) -> Iterator[T]:
        if not isinstance(self._items, Iterable):
            if isinstance(self._items, AsyncIterable):
                raise UsageError("the items of each() are async", hint="use `async for`")
            raise UsageError(
                f"the items of each() are {type(self._items).__name__}", hint="give a list"
            )
        return _Walk(self._run, iter(self._items))

    def __aiter__(self) -> AsyncIterator[T]:
        return _Walk(self._run, _awaited(self._items))


def _chained(digest: str, item: Any) -> str:
    return digest_of(f"{digest}\0{args_digest((item,), {})}".encode())


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and args_digest((one,), {}) == args_digest((other,), {})


async def _awaited(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
