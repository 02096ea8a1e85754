"""A run of a graph from its lease to its result: begun, gone on with, or found completed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.effects import Session, branch_note, check_form
from holdfast.checkpoint.manager import StateManager
from holdfast.core.records import Header
from holdfast.core.state import State, migrations
from holdfast.errors import HoldfastError, NotFoundError, ShapeError, UsageError
from holdfast.runtime.graph.compiled import Plan
from holdfast.runtime.graph.config import CheckpointConfig
from holdfast.runtime.graph.loop import Control, Loop
from holdfast.runtime.graph.shape import Progress, difference, read_progress
from holdfast.runtime.resume import across_branches, done_for_good, of_the_run
from holdfast.runtime.watch import Observer, emitter
from holdfast.storage.base import RecordQuery, RunInfo

__all__ = ["NOTHING", "Resume", "Runner"]

logger = logging.getLogger("holdfast.graph")

NOTHING: Any = object()


class Resume(msgspec.Struct, frozen=True):
    """How a run is to be gone on with."""

    run_id: str
    checkpoint_id: str | None = None
    step: int | None = None
    answer: Any = NOTHING
    answers: Mapping[str, Any] = {}
    secrets: Mapping[str, Any] = {}
    force: bool = False

    @property
    def back(self) -> bool:
        """Whether it is to be taken back to an earlier checkpoint."""
        return self.checkpoint_id is not None or self.step is not None


class Runner:
    """Executes one run of a graph."""

    def __init__(
        self,
        plan: Plan,
        manager: StateManager | None,
        config: CheckpointConfig,
        observers: Sequence[Observer],
        alone: bool,
    ) -> None:
        self._plan = plan
        self._manager = manager
        self._config = config
        self._observers = observers
        self._triggers = config.triggers() if manager is not None else None
        self._alone = alone
        self.control = Control()

    async def execute(self, state: State) -> State:
        """Begin the run of *state*, or go on with it if it was begun before."""
        if self._plan.name and not state.name:
            state = state.placed(msgspec.structs.replace(state.place, name=self._plan.name))
        if self._manager is None:
            return await self._begin(None, state)
        session = await self._open(self._manager, state.run_id)
        try:
            run = await asyncio.to_thread(session.manager.reader.run, state.run_id)
            if run is None:
                return await self._begin(session, state)
            return await self._go_on(session, run, Resume(run.run_id, secrets=state.secrets))
        finally:
            await self._close(session)

    async def resume(self, wanted: Resume) -> State:
        """Go on with a run that is in the store."""
        manager = self._manager
        assert manager is not None
        reader = manager.reader
        run = await asyncio.to_thread(reader.to_resume, wanted.run_id)
        if run is None:
            raise NotFoundError(
                f"no run {wanted.run_id!r} to resume",
                hint="check the run id and the store; without preserve=True a completed run is"
                " deleted",
                run_id=wanted.run_id,
            )
        if run.status == "completed" and not wanted.back:
            return await self._stored(manager, run, None, wanted)
        session = await self._open(manager, run.run_id)
        try:
            again = await asyncio.to_thread(reader.run, run.run_id)
            if again is None:
                raise NotFoundError(
                    f"run {run.run_id!r} was completed meanwhile", run_id=run.run_id
                )
            return await self._go_on(session, again, wanted)
        finally:
            await self._close(session)

    async def checkpoint(
        self, run_id: str, edit: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> State:
        """Save a run that nobody executes once more; one that is not there yet is begun."""
        manager = self._manager
        assert manager is not None
        session = await self._open(manager, run_id)
        try:
            run = await asyncio.to_thread(manager.reader.run, run_id)
            if run is None:
                state = State.new(run_id=run_id, name=self._plan.name)
                progress = Progress(next=self._plan.entry)
            else:
                header = await asyncio.to_thread(self._target, session, run, Resume(run_id))
                if edit and header.status == "completed":
                    raise UsageError(
                        f"run {run_id!r} is completed, and nothing of it can be changed",
                        hint="fork an earlier checkpoint",
                        run_id=run_id,
                    )
                loaded, state = await asyncio.to_thread(session.load, header, notes=True)
                progress = read_progress(loaded)
                state = self._fitted(header, state, progress, Resume(run_id))
                session.floor = progress.floor
                session.branch = max(session.branch, progress.branch)
                if edit and not session.ledger.effects():
                    progress.next = None  # nothing of that node has happened
            state = state.merge(edit).at(metadata=metadata)
            await self._loop(session, run_id).mark(state, progress)
            return state
        finally:
            await self._close(session)

    async def _open(self, manager: StateManager, run_id: str) -> Session:
        session = Session(
            manager,
            run_id,
            lease_seconds=self._config.lease_seconds,
            alone=self._alone,
            form=self._plan.form,
        )
        await session.open()
        emit = self._emit(run_id)
        if emit is not None:
            emit("lease.taken", {"epoch": session.epoch})
        return session

    async def _close(self, session: Session) -> None:
        await session.close()
        emit = self._emit(session.run_id)
        if emit is not None:
            emit("lease.released" if session.lost is None else "lease.lost", {})

    def _emit(self, run_id: str) -> Any:
        return emitter(self._observers, self._plan.name, {"run_id": run_id})

    async def _begin(self, session: Session | None, state: State) -> State:
        emit = self._emit(state.run_id)
        if emit is not None:
            emit("state.create", {"keys": state.keys()})
            facts = {"entry_point": self._plan.entry, "exit_points": len(self._plan.exits)}
            emit("graph.start", facts)
        loop = self._loop(session, state.run_id)
        if session is not None:
            state = state.at(scope="", step=0, node=None, kind="routine", status="running")
            await loop.begin(state)
        return await self._run(loop, session, state, Progress(next=self._plan.entry))

    def _loop(self, session: Session | None, run_id: str) -> Loop:
        return Loop(self._plan, session, "", self._emit(run_id), self.control, self._triggers)

    async def _run(
        self, loop: Loop, session: Session | None, state: State, progress: Progress
    ) -> State:
        self.control.task = asyncio.current_task()
        try:
            final = await loop.go(state, progress, state.lineage)
        finally:
            self.control.task = None
        if session is not None:
            await self._let_go(session.manager, session.run_id)
        return final

    async def _let_go(self, manager: StateManager, run_id: str) -> None:
        """Delete the journal of a completed run, unless it is to be preserved."""
        if self._config.preserve:
            return
        try:
            await manager.delete_run(run_id)
        except NotFoundError:
            return
        except HoldfastError as error:
            logger.warning("the journal of completed run %s was not deleted: %s", run_id, error)

    async def _stored(
        self, manager: StateManager, run: RunInfo, header: Header | None, wanted: Resume
    ) -> State:
        """The result of a run that is completed, by default the newest."""
        reader = manager.reader

        def load() -> State:
            final = header or reader.newest(run)
            assert final is not None
            loaded = reader.load(final)
            check_form(loaded, self._plan.form)
            return loaded.graph_state()

        state = await asyncio.to_thread(load)
        emit = self._emit(run.run_id)
        if emit is not None:
            emit("checkpoint.load", {"node": state.node, "checkpoint_id": state.checkpoint_id})
        if not wanted.back:
            await self._let_go(manager, run.run_id)
        return state.with_secrets(wanted.secrets) if wanted.secrets else state

    async def _go_on(self, session: Session, run: RunInfo, wanted: Resume) -> State:
        session.resumed = True
        header = await asyncio.to_thread(self._target, session, run, wanted)
        if header.status == "completed":
            return await self._stored(session.manager, run, header, wanted)
        loaded, state = await asyncio.to_thread(session.load, header, notes=True)
        by_hand = bool(loaded.form) and "now" not in loaded.extra  # an agent's, saved by a program
        progress = Progress(next=self._plan.entry) if by_hand else read_progress(loaded)
        if session.floor == 0:
            session.floor = progress.floor
        state = self._fitted(header, state, progress, wanted)
        state = of_the_run(header, state)
        session.branch = max(session.branch, progress.branch)
        if wanted.secrets:
            state = state.with_secrets(wanted.secrets)
        self._answer(session, wanted)
        self._say_resumed(header, progress)
        loop = self._loop(session, run.run_id)
        if session.floor == run.seq:
            left = session.end != run.seq
            if left or session.branch != progress.branch:
                state = await asyncio.to_thread(across_branches, session, run, state)
            notes = (branch_note(header.seq, run.seq),) if left else ()
            if left:
                await asyncio.to_thread(_warn_of_repeats, session)
            await loop.go_back(state, progress, *notes)
        return await self._run(loop, session, state, progress)

    def _target(self, session: Session, run: RunInfo, wanted: Resume) -> Header:
        """The checkpoint to go on from."""
        reader = session.manager.reader
        newest = reader.newest(run)
        if newest is None:
            raise NotFoundError(f"run {run.run_id!r} has no checkpoint", run_id=run.run_id)
        found: Header | None = newest
        if wanted.checkpoint_id is not None:
            found = reader.resolve(wanted.checkpoint_id, run_id=run.run_id)
            if found.scope:
                raise UsageError(
                    f"checkpoint {found.id} is of the nested scope {found.scope!r}",
                    hint="resume from a checkpoint of the run itself",
                )
        elif wanted.step is not None:
            if wanted.step > newest.step:
                raise NotFoundError(
                    f"run {run.run_id!r} stands at step {newest.step}, and {wanted.step} was asked"
                    " for",
                    hint="leave step out to go on with it",
                    run_id=run.run_id,
                    step=wanted.step,
                )
            query = RecordQuery(run_id=run.run_id, scope="")
            earlier = (h for h in reader.storage.headers(query) if h.step <= (wanted.step or 0))
            found = next(earlier, None)
            if found is None:
                raise NotFoundError(
                    f"run {run.run_id!r} has no checkpoint at or before step {wanted.step}",
                    run_id=run.run_id,
                )
        assert found is not None
        if found.seq != newest.seq:
            session.floor = run.seq
        return found

    def _fitted(self, header: Header, state: State, progress: Progress, wanted: Resume) -> State:
        """The state as the graph of today takes it, or a `ShapeError`."""
        plan = self._plan
        same = header.fingerprint == plan.fingerprint
        migrated = header.schema != plan.version
        if migrated:
            values, _ = migrations.upgrade(
                plan.name, header.schema, state.to_dict(), to=plan.version
            )
            gone = [key for key in state if key not in values]
            state = state.without(*gone).merge(values)
        if not same and not migrated and not wanted.force:
            raise difference(progress.shape, plan.shape, header.run_id)
        if progress.next is not None and progress.next not in plan.nodes:
            if header.node not in plan.nodes:
                raise ShapeError(
                    f"run {header.run_id!r} was to go on with {progress.next!r}, which is gone, and"
                    f" so is {header.node!r}, which it came from",
                    hint="resume from an earlier checkpoint",
                    run_id=header.run_id,
                )
            progress.next = None
        return state

    def _answer(self, session: Session, wanted: Resume) -> None:
        """Lay out the answers, each for a question that is open."""
        open_ids = [note.content.id for note in session.ledger.waiting() if note.kind == "question"]
        there = ", ".join(open_ids) or "none"
        if wanted.answer is not NOTHING:
            if len(open_ids) != 1:
                raise UsageError(
                    f"answer= is for one question, and run {session.run_id!r} waits for"
                    f" {len(open_ids)}",
                    hint=f"give answers={{id: answer}}; the open ones: {there}",
                    questions=tuple(open_ids),
                )
            session.ledger.given[open_ids[0]] = wanted.answer
        for id, answer in wanted.answers.items():
            if id not in open_ids:
                raise UsageError(
                    f"run {session.run_id!r} does not wait for {id!r}",
                    hint=f"the open ones: {there}",
                    questions=tuple(open_ids),
                )
            session.ledger.given[id] = answer

    def _say_resumed(self, header: Header, progress: Progress) -> None:
        emit = self._emit(header.run_id)
        if emit is None:
            return
        emit("checkpoint.load", {"node": header.node, "checkpoint_id": header.id})
        facts = {"checkpoint_node": header.node, "resume_node": progress.next}
        emit("checkpoint.resume", facts)
        start = {"entry_point": progress.next, "exit_points": len(self._plan.exits)}
        emit("graph.start", {**start, "resumed": True})


def _warn_of_repeats(session: Session) -> None:
    """Log what was done on the way that is left now: where the run goes on nobody knows of it."""
    done = done_for_good(session, session.elsewhere)
    if done:
        logger.warning(
            "run %s goes on from a way that it had left; done since, and perhaps done again: %s",
            session.run_id,
            ", ".join(done),
        )
