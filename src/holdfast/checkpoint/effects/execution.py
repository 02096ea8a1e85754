"""One run while it is executed: its lease, its saves, and where in it the code is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from holdfast.checkpoint.effects.ledger import Ledger, Spot, read_line
from holdfast.checkpoint.journal import CheckpointDraft, Loaded, Note
from holdfast.checkpoint.leases import RunLease
from holdfast.checkpoint.manager import (
    Commit,
    Pause,
    StateManager,
    Step,
    Work,
    await_uncancelled,
    drive,
)
from holdfast.core.records import Header
from holdfast.core.state import Lineage, State
from holdfast.errors import ConflictError, HoldfastError, UsageError
from holdfast.storage.base import RecordQuery

__all__ = ["CURRENT_STEP", "Emit", "Session", "StepContext", "check_form", "place_name"]

Emit = Callable[[str, Mapping[str, Any]], None]


class Session:
    """A run that this process holds and executes."""

    def __init__(
        self,
        manager: StateManager,
        run_id: str,
        *,
        lease_seconds: float,
        alone: bool = False,
        form: str = "",
    ) -> None:
        self.manager = manager
        self.form = form
        """Which class managers give the run's checkpoints out as."""
        self._alone = alone
        self.run_id = run_id
        self.ledger = Ledger(self._append)
        self.floor = 0
        """Records of nested scopes up to this seq are of steps that are completed."""
        self.branch = 0
        """After which record the run began to do anew what it had done; 0 if it never did. It is
        part of the keys of effects: a result that was discarded must not be given back."""
        self.end = 0
        """The last record on the way that led on from the checkpoint that was loaded."""
        self.elsewhere: list[Note] = []
        """What was recorded after that checkpoint on other ways."""
        self.resumed = False
        """Whether the journal held anything when this execution began."""
        self.scopes: set[str] = set()
        """The nested scopes of steps that are still open."""
        self.lost: HoldfastError | None = None
        """Why the run is no longer this process's."""
        self._journal = manager.engine.journal
        self._reader = manager.reader
        self._held = RunLease(self._journal, run_id, seconds=lease_seconds, on_lost=self._on_lost)
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._behind: list[asyncio.Task[None]] = []

    @property
    def epoch(self) -> int:
        """The lease's epoch: outside systems can refuse a smaller one than they have seen."""
        return self._held.epoch

    async def open(self) -> None:
        """Take the run, or raise `LeaseHeldError`. The current task is cancelled if it is lost."""
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

    def _on_lost(self, error: HoldfastError) -> None:
        self.lost = error
        if self._task is not None:
            self._task[0].call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task[1].cancel("the run's lease was lost")

    def taken_over(self) -> ConflictError:
        """The error of one whose lease another process has taken."""
        return ConflictError(
            f"run {self.run_id!r} was taken over by another process",
            hint="this process was away for longer than the lease; let the other go on",
            run_id=self.run_id,
        )

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
        if not wait:
            self._behind.append(asyncio.ensure_future(self._send(notes)))
            await asyncio.sleep(0)  # it is on its way before anything that follows
            return
        await self._send(notes)
        await self._settle()

    async def _send(self, notes: Sequence[Note]) -> None:
        try:
            await self.manager.append_notes(self.run_id, notes)
        except ConflictError as error:
            self.lost = error
            raise self.taken_over() from error

    async def _settle(self) -> None:
        """Wait for what was sent without waiting, and raise what it came to."""
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
        """Save *state* at its place with *notes*; the id, or "" if a failure was only warned of."""
        self._check_held()
        await self._settle()
        fresh = False
        if state.scope:
            self.scopes.add(state.scope)
            # What an earlier way through this step left in the scope is no base for this one.
            fresh = lineage.checkpoint_id is None
        values, natures = state.for_saving()
        draft = CheckpointDraft(
            "" if state.scope else self.form,
            state.place,
            values,
            natures,
            lineage,
            None,
            fingerprint,
            schema,
            extra,
            fresh,
        )
        try:
            # Between two steps of a run that has the event loop to itself nothing else waits for
            # it, so that going to the writer's thread and back would only cost time.
            if self._alone and not state.scope and self.manager.hook_manager is None:
                return self._save_here(draft, notes)
            return await self.manager.save_draft(draft, force=True, notes=notes)
        except ConflictError as error:
            self.lost = error
            raise self.taken_over() from error

    def _save_here(self, draft: CheckpointDraft, notes: Sequence[Note]) -> str:
        steps = self.manager.engine.save_draft(draft, force=True, notes=tuple(notes))
        header = drive(steps, self._do)
        return header.id if header is not None else ""

    def _do(self, step: Step) -> Any:
        if isinstance(step, Commit):
            return self._journal.commit([step.request])[0]
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        assert isinstance(step, Work)
        return step.call()

    async def end_scopes(self) -> None:
        """The steps with nested scopes are completed; where old checkpoints go, theirs go too."""
        scopes, self.scopes = self.scopes, set()
        for scope in scopes:
            self._journal.end_scope(self.run_id, scope)
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

    def load(self, header: Header, *, notes: bool = False) -> tuple[Loaded, State]:
        """The checkpoint, to be gone on from. With *notes*, the ledger takes up what follows it."""
        loaded = self._reader.load(header)
        check_form(loaded, self.form if not header.scope else "")
        state = loaded.graph_state()
        self._journal.resume_from(loaded, state)
        if notes:
            run = self._reader.run(self.run_id)
            assert run is not None
            # A run that was taken back does its parts again, and none of its effects.
            back = self.floor == run.seq
            line = read_line(self._reader, header, run.seq)
            self.ledger.take(note for note in line.notes if not (back and note.kind == "item"))
            self.end = line.end
            self.elsewhere = line.others
            self.branch = line.branch if line.end == run.seq else run.seq
        return loaded, state

    def newest(self, scope: str) -> Header | None:
        """The newest checkpoint of a nested scope that is of a step still open."""
        run = self._reader.run(self.run_id)
        header = self._reader.newest(run, scope) if run is not None else None
        return header if header is not None and header.seq > self.floor else None


def check_form(loaded: Loaded, form: str) -> None:
    """Raise a `UsageError` if it was saved by something else than what goes on with it."""
    if loaded.form != form:
        run_id = loaded.header.run_id
        if loaded.form:
            raise UsageError(f"run {run_id!r} is an agent's", hint="resume it with its agent")
        raise UsageError(f"run {run_id!r} is not an agent's", hint="resume it with what saved it")


def place_name(name: str, step: int) -> str:
    """What the place of that name in a step is called; no other place is called so."""
    if "/" in name or "@" in name or "%" in name:
        name = name.replace("%", "%25").replace("/", "%2F").replace("@", "%40")
    return f"{name}@{step}"


class StepContext:
    """Where in a run the code is: what `effect` and `interrupt` find out about themselves."""

    __slots__ = ("children", "counts", "emit", "node", "outer", "scope", "session", "step")

    def __init__(
        self,
        session: Session | None,
        scope: str,
        emit: Emit | None,
        *,
        step: int = 0,
        node: str = "",
        outer: Any = None,
    ) -> None:
        self.session = session
        self.scope = scope
        self.emit = emit
        self.step = step
        self.node = node
        self.outer = outer
        """What the runtime that executes this hands on to what is nested in it."""
        self.counts: dict[str, int] | None = None
        self.children = 0

    def enter(self, step: int, node: str) -> None:
        """Begin a step."""
        self.step = step
        self.node = node
        self.counts = None
        self.children = 0

    def position(self, name: str, key: str | None = None) -> str:
        """The next place of that name in this step: ``charge@4``, then ``charge@4.1``."""
        stem = self._at(name)
        if key is not None:
            return f"{stem}[{key}]"
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
        count = counts.get(name, 0)
        counts[name] = count + 1
        return f"{stem}.{count}" if count else stem

    def child(self) -> str:
        """The scope of the next thing in this step that has steps of its own."""
        stem = self._at(self.node)
        self.children += 1
        return stem if self.children == 1 else f"{stem}.{self.children - 1}"

    def _at(self, name: str) -> str:
        stem = place_name(name, self.step)
        return f"{self.scope}/{stem}" if self.scope else stem

    @property
    def spot(self) -> Spot:
        """What a note says of where it was written."""
        return Spot(self.scope, self.step, self.node)

    def say(self, kind: str, **data: Any) -> None:
        """Tell the observers."""
        if self.emit is not None:
            self.emit(kind, data)


CURRENT_STEP: ContextVar[StepContext | None] = ContextVar("holdfast_here", default=None)
