"""One run of a graph while it is executed: its lease, its saves, its position."""

from __future__ import annotations

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from surehold.core.records import Door, Header, digest_of
from surehold.core.state import Lineage, State
from surehold.engine.commit import await_uncancelled, load
from surehold.engine.hooks import hide_secrets
from surehold.engine.journal import CheckpointDraft, Loaded, Note, Tail
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.engine.runs.effect_log import (
    Effect,
    Ledger,
    OpenNotes,
    Recording,
    Spot,
    line_in,
    permitted,
    read_line,
)
from surehold.engine.runs.effects import AwaitsAll
from surehold.engine.runs.leases import RunLease
from surehold.errors import ConflictError, NotFoundError, StorageError, SureholdError, UsageError
from surehold.storage.base import RecordQuery, RunInfo

Emit = Callable[[str, Mapping[str, Any]], None]


def taken_over(run_id: str, cause: BaseException | None = None) -> ConflictError:
    """The error of a process whose lease another one has taken, or whose run is gone."""
    if isinstance(cause, ConflictError) and cause.facts.get("head") == 0:
        return ConflictError(cause.message, hint=cause.hint, run_id=run_id)
    return ConflictError(
        f"run {run_id!r} was taken over by another process",
        hint="this process was away for longer than the lease; the other one continues the run",
        run_id=run_id,
    )


class Session:
    """A run that this process holds and executes."""

    def __init__(
        self,
        manager: AsyncCheckpointManager,
        run_id: str,
        *,
        lease_seconds: float,
        alone: bool = False,
        door: Door | None = None,
    ) -> None:
        self.manager = manager
        self.hook_manager = manager.hook_manager
        self.door = door
        """What executes the run; None before that is known."""
        self._alone = alone
        self._blocking = CheckpointManager.of(manager.face)
        self.run_id = run_id
        self.stop = None  # the units of a graph are its nodes
        self.ledger = Ledger(self._append, self._append_now)
        self.floor = 0
        """Records of nested scopes up to this seq are of steps that are completed."""
        self.branch = 0
        """The record after which the run repeats earlier work; 0 if it does not. It is part of
        idempotency keys: a discarded result must not be returned."""
        self.end = 0
        """The last record of the branch that continues from the loaded checkpoint."""
        self.elsewhere: list[Note] = []
        """Notes that other branches recorded after that checkpoint."""
        self.resumed = False
        """True if the journal held records when this execution began."""
        self.scopes: set[str] = set()
        """The nested scopes of steps that are still open."""
        self.lost: SureholdError | None = None
        """The error with which this process lost the lease."""
        self._journal = manager.face.journal
        self._reader = manager.reader
        self._held = RunLease(self._journal, run_id, seconds=lease_seconds, on_lost=self._on_lost)
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._behind: list[asyncio.Task[None]] = []

    @property
    def epoch(self) -> int:
        """The lease's epoch: outside systems can refuse a smaller one than they have seen."""
        return self._held.epoch or 0

    def stored_head(self) -> int:
        """The newest record of the run that is known to be stored."""
        return self._journal.stored_head(self.run_id)

    async def open(self) -> None:
        """Take the run, or raise `LeaseHeldError`; losing it cancels the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._task = (asyncio.get_running_loop(), task)
        try:
            await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(self._held.acquire)))
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let others have the run."""
        if self._behind:
            await await_uncancelled(asyncio.ensure_future(asyncio.wait(self._behind)))
            self._behind = [task for task in self._behind if task.exception() is None]
        self._task = None
        await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(self._held.release)))

    def _on_lost(self, error: SureholdError) -> None:
        self.lost = error
        if self._task is not None:
            self._task[0].call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task[1].cancel("the run's lease was lost")

    def taken_over(self) -> ConflictError:
        """The error of a process whose lease another one has taken."""
        return taken_over(self.run_id, self.lost)

    def _check_held(self) -> None:
        if self.lost is not None:
            raise self.taken_over() from self.lost
        if self._task is None:
            raise ConflictError(
                f"run {self.run_id!r} is no longer executed here",
                hint="a node must wait for everything that it starts",
                run_id=self.run_id,
            )

    async def _append(self, notes: Sequence[Note], wait: bool) -> None:
        self._check_held()
        if not notes:
            await self._settle()
            return
        sent = asyncio.ensure_future(self._send(notes, tuple(self._behind)))
        if not wait:
            self._behind.append(sent)
            await asyncio.sleep(0)  # it is queued before anything that follows
            return
        await await_uncancelled(sent)
        await self._settle()

    async def _send(self, notes: Sequence[Note], earlier: Sequence[asyncio.Task[None]]) -> None:
        """Append *notes* after those sent *earlier*; raise the error if those failed.

        A record must not be stored without those it depends on, be it for want of room.
        """
        postponed: tuple[Note, ...] = ()
        if earlier:
            await asyncio.wait(earlier)
            for task in earlier:
                task.result()
            postponed = self.ledger.deferred()
        try:
            await self.manager.append_notes(
                self.run_id, (*postponed, *notes), epoch=self._held.epoch
            )
        except ConflictError as error:
            self.lost = error
            raise self.taken_over() from error
        except StorageError as error:
            if not self.ledger.postpone((*postponed, *notes), error):
                self.ledger.defer_again(postponed)
                raise

    def _append_now(self, notes: Sequence[Note]) -> None:
        self._check_held()
        try:
            self._blocking.append_notes(self.run_id, notes, epoch=self._held.epoch)
        except ConflictError as error:
            self.lost = error
            raise self.taken_over() from error
        except StorageError as error:
            if not self.ledger.postpone(notes, error):
                raise

    async def _settle(self) -> None:
        """Wait for what was sent without waiting, and raise its errors."""
        while self._behind:
            first = self._behind[0]
            await asyncio.wait([first])
            if first in self._behind:  # another part of the step may have waited for it as well
                self._behind.remove(first)
            first.result()

    async def save(
        self,
        state: State,
        lineage: Lineage,
        *,
        fingerprint: str | None = None,
        schema: int = 0,
        extra: Callable[[bool], bytes] | None = None,
        notes: Sequence[Note] = (),
    ) -> str:
        """Save *state* at its place with *notes*; "" for a failure that was only logged."""
        self._check_held()
        await self._settle()
        fresh = False
        if state.scope:
            self.scopes.add(state.scope)
            # What an earlier way through this step left in the scope is no base for this one.
            fresh = lineage.checkpoint_id is None
        values, natures = state.for_saving()
        draft = CheckpointDraft(
            "" if state.scope else form_of(self.door),
            state.place,
            values,
            natures,
            lineage,
            door=self.door,
            fingerprint=fingerprint,
            schema=schema,
            extra=extra,
            force_keyframe=fresh,
        )
        epoch = self._held.epoch
        try:
            # Between two steps of a run that has the event loop to itself nothing else waits for
            # it, so that going to the writer's thread and back would only cost time.
            if self._alone and not state.scope and self.manager.hook_manager is None:
                return self._blocking.save_draft(draft, force=True, notes=notes, epoch=epoch)
            return await self.manager.save_draft(draft, force=True, notes=notes, epoch=epoch)
        except ConflictError as error:
            self.lost = error
            raise self.taken_over() from error

    async def permit(self, here: StepContext) -> None:
        """Permit one more attempt of each call of the current step that raised."""
        inside = here.at(here.node)
        for note in self.ledger.effects():
            entry: Effect = note.content
            own = note.scope == here.scope and note.step == here.step
            nested = note.scope.startswith((f"{inside}/", f"{inside}.")) or note.scope == inside
            if entry.error is not None and (own or nested):
                await self.ledger.write(
                    permitted(entry), Spot(note.scope, note.step, note.node or "")
                )

    async def end_scopes(self) -> None:
        """End the steps with nested scopes: their checkpoints go with the old ones here."""
        scopes, self.scopes = self.scopes, set()
        self._journal.end_scopes(self.run_id, scopes)
        retention = self.manager.retention
        if scopes and retention.active:
            await asyncio.to_thread(self._hide, scopes)

    def _hide(self, scopes: set[str]) -> None:
        storage = self.manager.storage
        seqs = [
            header.seq
            for scope in scopes
            for header in storage.headers(RecordQuery(run_id=self.run_id, scope=scope))
        ]
        storage.delete(self.run_id, hide=seqs)
        self.manager.retention.forget_all()

    async def resume(self) -> tuple[Tail, State] | None:
        """Load the newest checkpoint and the ledger after it; None without such a run.

        The hooks hear of it; an agent tells its own of the resume.
        """
        resumed = await self.manager.perform(
            load.resume_run(
                self.manager.face, self._look, Loaded.graph_state, fires=not form_of(self.door)
            )
        )
        if resumed is None:
            return None
        state, tail = resumed
        assert isinstance(state, State)
        if self.door is not None:
            check_door(tail.loaded, self.door)
        self.resumed = True
        sealer, head = self._reader.sealer, tail.run.seq
        self._take(line_in(sealer, tail.notes, tail.loaded.header, head), head)
        return tail, state

    def _look(self) -> tuple[RunInfo, Header | None] | None:
        found = self._held.head_and_newest()
        if found is not None and found[1] is None:
            raise NotFoundError(f"run {self.run_id!r} has no checkpoint", run_id=self.run_id)
        return found

    def _take(self, line: OpenNotes, head: int) -> None:
        # A run that was rewound repeats its parts, and none of its effects.
        back = self.floor == head
        self.ledger.take(note for note in line.notes if not (back and note.kind == "item"))
        self.end = line.end
        self.elsewhere = line.others
        self.branch = line.branch if line.end == head else head

    def load(
        self, header: Header, *, notes: bool = False, run: RunInfo | None = None
    ) -> tuple[Loaded, State]:
        """Load the checkpoint to continue from; with *notes*, also the ledger after it.

        *run* is the run's head, if it was read under the lease.
        """
        loaded = self._reader.load(header)
        if self.door is not None and not header.scope:
            check_door(loaded, self.door)
        state = loaded.graph_state()
        self._journal.resume_from(loaded, state)
        if notes:
            run = run or self._reader.run(self.run_id)
            assert run is not None
            self._take(read_line(self._reader, header, run.seq), run.seq)
        return loaded, state

    def newest(self, scope: str) -> Header | None:
        """The newest checkpoint of a nested scope that is of a step still open."""
        run = self._reader.run(self.run_id)
        header = self._reader.newest(run, scope) if run is not None else None
        return header if header is not None and header.seq > self.floor else None


def check_door(loaded: Loaded, door: Door) -> None:
    """Raise a `UsageError` unless *door* may continue the run of a checkpoint.

    An agent also continues an agent's state that was saved by hand.
    """
    header = loaded.header
    if not (loaded.form and door.kind == "agent" and loaded.door.kind == "manager"):
        loaded.door.check(door.kind, header.run_id, header.name)


def form_of(door: Door | None) -> str:
    """The class that managers load the checkpoints of a door as."""
    return "agent" if door is not None and door.kind == "agent" else ""


def place_name(name: str, step: int) -> str:
    """The unique name of a place, from its *name* and its step."""
    if "/" in name or "@" in name or "%" in name:
        name = name.replace("%", "%25").replace("/", "%2F").replace("@", "%40")
    return f"{name}@{step}"


class CallContext(ABC):
    """The position of running code in a run, as `effect` needs it."""

    __slots__ = ("begun", "emit", "failed", "recording", "repeats")

    def __init__(self, emit: Emit | None, recording: Recording | None) -> None:
        self.emit = emit
        self.recording = recording
        """The execution that records calls; None if this run records nothing."""
        self.repeats = True
        """False inside a call that must not be made again: the run cannot be left there."""
        self.failed: dict[tuple[str, str | None, str], str] = {}
        """Idempotency keys of calls that raised, by name, key and arguments: an attempt that
        follows uses the same one."""
        self.begun: dict[str, set[int]] | None = None
        """The numbers of the runs begun here that are executed or completed, by place."""

    @property
    @abstractmethod
    def spot(self) -> Spot:
        """The position that notes are written at."""

    @property
    def awaited(self) -> bool | None:
        """True if the code can await calls, False if it cannot, None if that is not known."""
        return None

    @abstractmethod
    def place(self, name: str, key: str | None) -> str:
        """The id of the next call of that name."""

    @abstractmethod
    def inside(self, place: str, awaited: bool | None) -> CallContext:
        """The positions of the calls that the call at *place* makes itself.

        They do not count among those around it: a replay that has its outcome makes none of them.
        """

    def active(self) -> AwaitsAll:
        """A block of user code whose calls are counted here, and are all awaited."""
        return AwaitsAll(OPEN_RUN, self)

    def locate(self, name: str, key: str | None, args: str) -> tuple[str, Effect | None, str]:
        """The next call's id, its recorded entry if there is one, and its idempotency key."""
        recording = self.recording
        assert recording is not None
        hidden = None if key is None else hide_secrets(key, recording.hook_manager)
        place = self.place(name, hidden)
        ledger = recording.ledger
        attempt, stem = 0, place
        while key is not None and (place, None, "") in self.failed:
            attempt += 1
            place = f"{stem}.{attempt}"
        known = ledger.find(Effect, place)
        if known is not None:
            return place, known, known.key
        again = self.failed.get((name, key, args))
        return place, None, again or idempotency_key(recording, place)

    def ended(self, entry: Effect, key: str | None, *, failed: bool) -> None:
        """Note how a call ended, for the attempts that may follow it."""
        if failed:
            self.failed[entry.name, key, entry.args] = entry.key
            self.failed[entry.id, None, ""] = entry.key
        elif self.failed:
            self.failed.pop((entry.name, key, entry.args), None)

    def say(self, kind: str, **data: Any) -> None:
        """Tell the observers."""
        if self.emit is not None:
            self.emit(kind, data)


def idempotency_key(recording: Recording, place: str) -> str:
    """The idempotency key of the call at *place*."""
    parts = [recording.run_id, place]
    if recording.branch:
        parts.append(str(recording.branch))
    return digest_of("\0".join(parts).encode())


class StepContext(CallContext):
    """The position of running code in a graph, for `effect` and `interrupt`."""

    __slots__ = (
        "_within",
        "awaited",
        "children",
        "counts",
        "node",
        "outer",
        "scope",
        "session",
        "step",
    )
    awaited: bool | None
    """None if it is not known: a plain node may return what is to be awaited."""

    def __init__(
        self,
        session: Session | None,
        scope: str,
        emit: Emit | None,
        *,
        step: int = 0,
        node: str = "",
        outer: Any = None,
        within: str = "",
        awaited: bool | None = None,
    ) -> None:
        super().__init__(emit, session)
        self._within = within
        self.awaited = awaited
        self.session = session
        self.scope = scope
        self.step = step
        self.node = node
        self.outer = outer
        """An object of the executing runtime, for what is nested in the step."""
        self.counts: dict[str, int] | None = None
        self.children = 0

    def enter(self, step: int, node: str) -> None:
        """Begin a step."""
        self.step = step
        self.node = node
        self.counts = self.begun = None
        self.children = 0
        if self.failed:
            self.failed.clear()

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call of that name: ``charge@4``, then ``charge@4.1``."""
        stem = f"{self._within}/{place_name(name, self.step)}" if self._within else self.at(name)
        if key is not None:
            return f"{stem}[{key}]"
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
        count = counts.get(name, 0)
        counts[name] = count + 1
        return f"{stem}.{count}" if count else stem

    def child(self) -> str:
        """The scope of the next part of this step that has steps of its own."""
        stem = self.at(self.node)
        if self._within:
            stem = f"{stem}.{self._within.replace('/', '!').replace('@', '!')}"
        self.children += 1
        return stem if self.children == 1 else f"{stem}.{self.children - 1}"

    def at(self, name: str) -> str:
        """The first position of that name in this step."""
        stem = place_name(name, self.step)
        return f"{self.scope}/{stem}" if self.scope else stem

    def inside(self, place: str, awaited: bool | None) -> StepContext:
        """The positions of the calls that the call at *place* makes itself."""
        return StepContext(
            self.session,
            self.scope,
            self.emit,
            step=self.step,
            node=self.node,
            outer=self.outer,
            within=place,
            awaited=awaited,
        )

    def active(self) -> AwaitsAll:
        """A block of user code whose calls are counted here, and are all awaited."""
        return AwaitsAll(CURRENT_STEP, self)

    @property
    def spot(self) -> Spot:
        """The position that notes are written at."""
        return Spot(self.scope, self.step, self.node)


CURRENT_STEP: ContextVar[StepContext | None] = ContextVar("surehold_here", default=None)
OPEN_RUN: ContextVar[CallContext | None] = ContextVar("surehold_open_run", default=None)
"""The run or durable function that is open here; a graph inside it is a run of its own."""


def call_context() -> CallContext | None:
    """The innermost run that the running code is in."""
    return CURRENT_STEP.get() or OPEN_RUN.get()


RUNS_HERE: list[str] = []
"""The functions and blocks that this process executes, by run id."""
_warned_of: set[str] = set()


def warn_beside(name: str) -> None:
    """Warn once of a step in a thread that has not the context of its run."""
    if not RUNS_HERE or name in _warned_of:
        return
    if threading.current_thread() is not threading.main_thread():
        _warned_of.add(name)
        warnings.warn(
            f"step {name!r} is called in a thread outside run {RUNS_HERE[-1]!r}, and is not"
            " recorded (start threads with asyncio.to_thread, or give the pool"
            " contextvars.copy_context().run)",
            RuntimeWarning,
            stacklevel=3,
        )


def check_awaited(what: str, instead: str) -> None:
    """Raise a `UsageError` if *what* must be awaited, and the running code cannot."""
    context = call_context()
    if context is not None and context.awaited is False:
        raise UsageError(
            f"{what} must be awaited, and this code is not async",
            hint=f"make the workflow or the run async; in plain code {instead}",
        )
