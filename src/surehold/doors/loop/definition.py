"""`surehold.run`: a durable run for people who have their own loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import Token
from typing import Any, Generic, Self, TypeVar

from surehold.core.policy import Clockwork, RunFacts, Triggers, check_above_zero, ending_of
from surehold.core.records import Door, check_run_id, digest_of
from surehold.core.state import NO_METADATA, Place, read_metadata
from surehold.engine.commit import await_uncancelled
from surehold.engine.journal import Note
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import OpenRun, draft_at, taken_over
from surehold.engine.runs import in_doubt as is_in_doubt
from surehold.engine.runs.effects import (
    AwaitsAll,
    Called,
    CallPolicy,
    EffectCall,
    InDoubt,
    args_digest,
    calls_behind,
    check_policy,
    describe,
    failure_in,
    failure_text,
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
    RunContext,
    StepContext,
    call_context,
    other_items,
    under,
)
from surehold.errors import EncodeError, StorageError, UsageError
from surehold.storage.base import Storage

T = TypeVar("T")

_NOT_SAVED = "surehold: the state at this point was not saved"
_LOOPS = "each"
"""The metadata of a checkpoint that keeps the progress of `Run.each`."""


def run(
    run_id: str,
    *,
    storage: CheckpointManager | Storage | str | None = None,
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
    `Run.completed`, and its state is the final one. On SIGINT or SIGTERM a recorded call in
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
        storage: CheckpointManager | Storage | str | None,
        name: str,
        triggers: Triggers,
        lease_seconds: float,
        signals: bool | None,
    ) -> None:
        self.run_id = run_id
        self.name = name
        self._state: dict[str, Any] = {}
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
        """The values that are saved: those last saved, until the code changes them."""
        return self._state

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        if not isinstance(values, dict):
            raise UsageError(f"run.state is {values!r:.40}", hint="give a dict, or set its keys")
        self._state = values

    @property
    def completed(self) -> bool:
        """True if the run had ended well; its state is then the final one."""
        return self.status == "completed"

    # Calls

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> Any:
        """Call *fn* and record its result; after a crash the result is returned again.

        The same as `effect` with the name of *fn*. A `surehold.step` brings its own retries, time
        limit and policy; anything else is asked about if it is in doubt. Inside ``async with``
        the call is awaited.
        """
        policy = getattr(fn, "call_policy", None)
        if not isinstance(policy, CallPolicy):
            name = getattr(fn, "__name__", "") or type(fn).__name__
            policy = CallPolicy(name=name)
        return self._perform(policy, None, Called(getattr(fn, "function", fn), args, kwargs))

    def effect(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        in_doubt: InDoubt | None = None,
        key: str | None = None,
        probe: Callable[[str], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call *fn* and record its outcome, as `surehold.effect` does.

        Positions are counted within the block or the item of `each`, by name, from the newest
        `checkpoint`: a call that a checkpoint has settled is made again if the code comes there
        again. Inside ``async with`` the call is awaited.
        """
        policy = CallPolicy(name=name, in_doubt=check_policy(name, in_doubt, probe), probe=probe)
        return self._perform(policy, key, Called(fn, args, kwargs))

    def _perform(self, policy: CallPolicy, key: str | None, called: Called) -> Any:
        (opened, context), fn = self._opened(), called.fn
        if not callable(fn):
            raise UsageError(f"{fn!r} cannot be called", hint="give a function, then its arguments")
        here = call_context()
        inner = here if here is not None and here.run is opened else context
        call = EffectCall(inner, opened, policy)
        if self._awaited:
            what = f"the call of {policy.name!r}"
            return to_await(what, perform(call, key, called))
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
        new ones at the end; other ones are a `ShapeError`. A completed run has none left. Use it
        with ``for`` or ``async for``; async iterables need the latter. A set is refused.
        """
        if isinstance(items, set | frozenset):
            raise UsageError(
                "the items of each() are a set, which has another order in each process",
                hint="give a list: sorted(items)",
            )
        return Each(self, items)

    def _each(self, items: Iterable[T]) -> Iterator[T]:
        if self._run is not None and self.completed:
            return
        walk = _Walk(*self._opened())
        for item in items:
            if walk.begins(item):
                try:
                    yield item
                finally:
                    walk.leave()
                self._item_done(walk.loop, walk.path, walk.digest)
        walk.end()

    async def _each_async(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
        if self._run is not None and self.completed:
            return
        walk = _Walk(*self._opened())
        async for item in _awaited(items):
            if walk.begins(item):
                try:
                    yield item
                finally:
                    walk.leave()
                await asyncio.to_thread(self._item_done, walk.loop, walk.path, walk.digest)
        walk.end()

    def _item_done(self, loop: LoopProgress, path: str, digest: str) -> None:
        opened, context = self._opened()
        opened.leaving.check()
        loop.done, loop.digest, loop.item = loop.done + 1, digest, None
        self.step += 1
        context.step = self.step
        self._past.append((path, self.step))
        if self._every_step or self._is_due():
            self._save("routine", "running")
        opened.stop.check()

    # Saving

    def checkpoint(
        self, *, node: str | None = None, metadata: dict[str, Any] | None = None, **values: Any
    ) -> str | None:
        """End a step with these values set in the state; save if that is due.

        Returns the checkpoint's id, or None if it was not due. The calls recorded so far in this
        block, or in this item of `each`, are settled: positions begin anew. Values that cannot be
        stored are an `EncodeError`: the step has then not ended, and the state is what it was
        before the call.
        """
        opened, context = self._opened()
        if opened.leaving.signals:
            opened.leaving.check()
        if node is not None and not isinstance(node, str):
            raise UsageError(f"node is {node!r}", hint="give the name of the step, a text")
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
        if opened.stop.reason is not None:
            opened.stop.check()
        return saved

    def _is_due(self, node: str | None = None) -> bool:
        return self._clock.due(self.step, time.monotonic(), node=node) is not None

    def _opened(self) -> tuple[OpenRun, RunContext]:
        if self._run is None or self._context is None:
            raise UsageError("this run is not open", hint="use it inside its with block")
        if self.status == "completed":
            raise UsageError(
                f"run {self.run_id!r} is completed", hint="start a new one with another run id"
            )
        return self._run, self._context

    def _save(
        self,
        kind: str,
        status: str,
        node: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        error: str = "",
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
        loops = context.saved() if context.moved and not done else None
        if loops is not None:
            facts[_LOOPS] = loops
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
        force = bool(error) and error != self._told
        extra = {"error": error} if error else None
        try:
            draft = draft_at(place, self._state, opened.lineage, door=opened.door, extra=extra)
            with opened.stop.unit(f"step {self.step}"):
                saved = opened.save(draft, notes=kept, force=force)
        except StorageError as unsaved:
            self._unsaved = unsaved
            raise
        if saved:
            self.checkpoint_id, self._told = saved, error
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
            self.status = "completed" if state.status == "completed" else "running"
            self.resumed = True
            self._told = failure_in(loaded.header, loaded.extras[-1])
            loops = state.metadata.get(_LOOPS)
        else:
            opened.begin = self._begin
        self._context = RunContext(opened, self.step, loops, blocks=not self._awaited)
        self._clock = Clockwork(self._triggers, step=self.step, now=time.monotonic())

    def _close(self, error: BaseException | None) -> None:
        opened = self._run
        assert opened is not None
        try:
            if not self.completed:
                self._end(error)
        finally:
            self._run = None
            opened.close()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._save_broken_off(error)
            return
        try:
            self._save("final", "completed")
        except EncodeError as unstorable:
            self._save_broken_off(unstorable)
            raise

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
        failed = ending.kind == "recovery"
        text = failure_text(describe(error), opened.hook_manager) if failed else ""
        told: dict[str, Any] = {}
        if ending.status != "waiting":
            told = {"error": type(error).__name__} | ({"compensated": True} if followed else {})
        try:
            if error is not self._unsaved:
                self._go_back(opened)
            self._save(
                ending.kind, ending.status, metadata=told, error=text, permits=ending.permits
            )
        except Exception as failure:  # whatever it is, it must not hide the user's error
            error.add_note(f"{_NOT_SAVED}: {failure}")

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
        CURRENT_STEP.reset(tokens[0])
        OPEN_RUN.reset(tokens[1])
        try:
            self._awaits.__exit__(None, error, None)
        except UsageError as forgotten:
            return forgotten
        return error

    def _reason(self, error: BaseException | None) -> BaseException | None:
        """The exception that decides how the run ends, after its block ended with *error*."""
        opened = self._run
        if opened is None or self.completed:
            return error
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

    async def __aenter__(self) -> Self:
        self._awaited = True
        try:
            await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(self._open)))
        except asyncio.CancelledError:
            if self._run is not None:
                await asyncio.to_thread(self._run.close)
                self._run = None
            raise
        assert self._run is not None
        self._run.awaited.watch()
        return self._enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._watching.pop_all():
            ended = self._reason(
                self._exit(self._run.awaited.unwatch(error) if self._run else error)
            )
            opened = self._run
            if opened is not None and (opened.stop.reason or opened.leaving.signal):
                await opened.stop.until_idle()
            await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(self._close, ended)))
            if ended is not error and ended is not None:
                raise ended

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.status} at step {self.step}>"


class _Walk:
    """One pass of `Run.each` over its items."""

    def __init__(self, opened: OpenRun, context: RunContext) -> None:
        self._opened, self._context = opened, context
        self.loop, self._number = context.enter_loop()
        self._begun, self._count, self.digest = self.loop.done, 0, ""

    def begins(self, item: Any) -> bool:
        """Count *item* and begin it, unless an earlier execution completed it."""
        self._count += 1
        self.digest = _chained(self.digest, item)
        if self._count > self._begun:
            self._opened.leaving.check()
            self._depth = self._context.enter_item(self.loop, self._number)
            return True
        self._check(self._count < self._begun or self.digest == self.loop.digest)
        return False

    def leave(self) -> None:
        """Leave the body of the item."""
        self.path = self._context.path_at(self._depth)
        self._context.leave_item(self._depth)

    def end(self) -> None:
        """Check that no completed item is missing."""
        self._check(self._count >= self._begun)

    def _check(self, same: bool) -> None:
        if not same:
            raise self._opened.leaving.mark(other_items(self._opened.run_id, self._begun))


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
        return self._run._each(self._items)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._run._each_async(self._items)


def _chained(digest: str, item: Any) -> str:
    return digest_of(f"{digest}\0{args_digest((item,), {})}".encode())


async def _awaited(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
