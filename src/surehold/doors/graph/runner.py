"""One execution of a run: from its lease to its result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from surehold.core.policy import Triggers
from surehold.core.records import Header
from surehold.core.state import Lineage, State, migrations
from surehold.doors.events import Observer, emitter
from surehold.doors.graph.compiled import Plan
from surehold.doors.graph.config import CheckpointConfig
from surehold.doors.graph.loop import Loop
from surehold.doors.result import Spent, spent_before, spent_on
from surehold.doors.resume import (
    Now,
    Progress,
    Target,
    across_branches,
    check_input,
    difference,
    done_for_good,
    find_run,
    find_target,
    of_the_run,
    read_progress,
    spent_until,
    write_progress,
)
from surehold.engine.journal import CheckpointDraft, Loaded, Note, branch_note
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.metrics import resume_cause
from surehold.engine.runs import OpenRun, StopRequests, check_door, draft_of_state
from surehold.errors import NotFoundError, ShapeError, SureholdError, UsageError
from surehold.storage.base import RunInfo

logger = logging.getLogger("surehold.graph")

NOTHING: Any = object()


class ResumeRequest(msgspec.Struct, frozen=True):
    """Options of a resume."""

    run_id: str
    checkpoint_id: str | None = None
    step: int | None = None
    answer: Any = NOTHING
    answers: Mapping[str, Any] = {}
    secrets: Mapping[str, Any] = {}
    force: bool = False
    given: State | None = None
    """The input that the caller says the run began with."""
    found: RunInfo | None = None
    """The run, if it was looked up."""

    @property
    def rewinds(self) -> bool:
        """True if it names an earlier checkpoint."""
        return self.checkpoint_id is not None or self.step is not None


class _Found(msgspec.Struct):
    """A run as the journal has it, ready to be continued."""

    header: Header
    state: State
    progress: Progress
    notes: tuple[Note, ...] = ()
    rewound: bool = False


class Runner(msgspec.Struct, eq=False):
    """Executes one run of a graph."""

    plan: Plan
    manager: AsyncCheckpointManager | None
    config: CheckpointConfig
    observers: Sequence[Observer]
    alone: bool
    tell_spent: Callable[[Spent], None] | None = None
    """Called with the cost of the calls that earlier executions of the run recorded."""
    _triggers: Triggers | None = None
    stop: StopRequests = msgspec.field(default_factory=StopRequests)
    _failed: set[int] = msgspec.field(default_factory=set)
    """The observers that have failed."""

    def __post_init__(self) -> None:
        self._triggers = self.config.triggers() if self.manager is not None else None

    async def execute(self, state: State, given: State | None = None) -> State:
        """Begin the run of *state*, or continue it if it was begun before.

        If it was begun with other values than *given*, it is a `UsageError`.
        """
        if self.plan.name and not state.name:
            state = state.placed(msgspec.structs.replace(state.place, name=self.plan.name))
        if self.manager is None:
            return await self._begin(None, state)
        wanted = ResumeRequest(state.run_id, secrets=state.secrets, given=given)
        async with self._held(self.manager, state.run_id) as held:
            found = await self._find(held, wanted, state.name)
            if found is None:
                return await self._begin(held, state)
            return await self._continue(held, found, wanted)

    async def resume(self, wanted: ResumeRequest) -> State:
        """Continue a run that is in the store."""
        manager = self.manager
        assert manager is not None
        run = wanted.found
        if run is None:
            run = await asyncio.to_thread(find_run, manager.reader, wanted.run_id)
        run_id = run.run_id
        if run.status == "completed" and not wanted.rewinds and self.config.preserve:
            self._check_name(run, wanted, self.plan.name)
            await asyncio.to_thread(self._check_input, manager, wanted)
            target = await asyncio.to_thread(find_target, manager.reader, run)
            return await self._stored(manager, target.newest, wanted)
        # A journal that is to be deleted is deleted under the lease: the id may be in use again.
        async with self._held(manager, run_id) as held:
            found = await self._find(held, wanted, self.plan.name)
            if found is None:
                raise NotFoundError(f"run {run_id!r} was completed meanwhile", run_id=run_id)
            return await self._continue(held, found, wanted)

    async def checkpoint(
        self, run_id: str, edit: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> State:
        """Save a run that is not being executed; begin it if the store does not hold it."""
        manager = self.manager
        assert manager is not None
        async with self._held(manager, run_id) as held:
            state = State.new(run_id=run_id, name=self.plan.name)
            progress = Progress(next=self.plan.entry)
            run = await asyncio.to_thread(manager.reader.run, run_id)
            if run is not None:
                state, progress = await asyncio.to_thread(self._edited, held, run, edit)
            state = state.merge(edit).at(metadata=metadata)
            await self._loop(held, run_id).mark(state, progress)
            return state

    def _edited(
        self, held: OpenRun, run: RunInfo, edit: Mapping[str, Any]
    ) -> tuple[State, Progress]:
        header = find_target(held.manager.reader, run).header
        if edit and header.status == "completed":
            raise UsageError(
                f"run {run.run_id!r} is completed, and cannot be changed",
                hint="fork an earlier checkpoint",
                run_id=run.run_id,
            )
        loaded, state = held.load_at(header, notes=True)
        progress = read_progress(loaded)
        state = self._fitted(header, state, progress, force=False)
        held.floor = progress.floor
        held.branch = max(held.branch, progress.branch)
        if edit and not held.ledger.effects():
            progress.next = None  # nothing of that node has happened
        return state, progress

    # Lease

    @asynccontextmanager
    async def _held(self, manager: AsyncCheckpointManager, run_id: str) -> AsyncIterator[OpenRun]:
        """The run under its lease, for the block."""
        lease = self.config.lease_seconds
        held = OpenRun(run_id, self.plan.door, manager, lease, alone=self.alone)
        await held.awaited.open()
        self._say(run_id, "lease.taken", epoch=held.epoch)
        try:
            yield held
        finally:
            await held.awaited.close()
            self._say(run_id, "lease.released" if held.lost is None else "lease.lost")

    def _say(self, run_id: str, kind: str, **facts: Any) -> None:
        emit = self._emit(run_id)
        if emit is not None:
            emit(kind, facts)

    def _emit(self, run_id: str) -> Any:
        head = None
        if self.manager is not None:
            head = partial(self.manager.face.journal.stored_head, run_id)
        return emitter(self.observers, self.plan.name, {"run_id": run_id}, head, self._failed)

    # Begin and continue

    async def _begin(self, held: OpenRun | None, state: State) -> State:
        plan, run_id = self.plan, state.run_id
        self._say(run_id, "state.create", keys=state.keys())
        self._say(run_id, "graph.start", entry_point=plan.entry, exit_points=len(plan.exits))
        loop = self._loop(held, state.run_id)
        if held is not None:
            state = state.at(scope="", step=0, node=None, kind="routine", status="running")
            await loop.begin(state)
        return await self._run(loop, held, state, Progress(next=self.plan.entry))

    async def _find(self, held: OpenRun, wanted: ResumeRequest, name: str) -> _Found | None:
        """Load the checkpoint to continue from; None if the store does not hold the run."""
        if wanted.rewinds:
            return await asyncio.to_thread(self._find_earlier, held, wanted, name)
        state = await held.awaited.load()
        loaded, run = held.loaded, held.head
        if state is None or loaded is None or run is None:
            return None
        header = loaded.header
        self._check_name(run, wanted, name)
        if wanted.given is not None:
            await asyncio.to_thread(self._check_input, held.awaited.manager, wanted)
        effects = held.ledger.effects()
        self._tell_spent(spent_until(loaded) + spent_on(note.content for note in effects))
        if header.status == "completed":
            return _Found(header, state, Progress())
        progress = self._progress(loaded)
        held.floor = progress.floor
        state = self._fitted(header, state, progress, force=wanted.force)
        held.branch = max(held.branch, progress.branch)
        return _Found(header, of_the_run(header, state), progress)

    def _tell_spent(self, spent: Spent) -> None:
        if self.tell_spent is not None:
            self.tell_spent(spent)

    def _progress(self, loaded: Loaded) -> Progress:
        by_hand = loaded.door.kind == "manager"
        return Progress(next=self.plan.entry) if by_hand else read_progress(loaded)

    def _find_earlier(self, held: OpenRun, wanted: ResumeRequest, name: str) -> _Found | None:
        """The same for a checkpoint that *wanted* names."""
        reader = held.manager.reader
        run = reader.run(held.run_id)
        if run is None:
            return None
        held.resumed = True
        target = find_target(reader, run, wanted.checkpoint_id, wanted.step)
        run, header = target.run, target.header
        held.manager.face.metrics.resumed(resume_cause(target.newest.status))
        self._check_name(run, wanted, name)
        self._check_input(held.awaited.manager, wanted)
        if not target.is_newest:
            held.floor = run.seq
        if header.status == "completed":
            return _Found(header, self._final(held.awaited.manager, header), Progress())
        loaded, state = held.load_at(header, notes=True, run=run)
        progress = self._progress(loaded)
        effects = held.ledger.effects()
        progress.spent = spent_before(reader, run.run_id, effects)
        self._tell_spent(progress.spent + spent_on(note.content for note in effects))
        if held.floor == 0:
            held.floor = progress.floor
        state = self._fitted(header, state, progress, force=wanted.force)
        state = of_the_run(header, state)
        held.branch = max(held.branch, progress.branch)
        if held.floor != run.seq:
            return _Found(header, state, progress)
        return self._rewound(held, target, state, progress)

    def _rewound(self, held: OpenRun, target: Target, state: State, progress: Progress) -> _Found:
        """An earlier checkpoint with the cost since; warns of effects that may repeat."""
        run, header = target.run, target.header
        abandoned = held.end != run.seq
        if abandoned or held.branch != progress.branch:
            state = across_branches(held, run, state)
        if not abandoned:
            return _Found(header, state, progress, rewound=True)
        done = done_for_good(held.manager.reader, run.run_id, held.elsewhere)
        if done:
            logger.warning(
                "run %s continues from an abandoned branch; effects recorded since then may be"
                " repeated: %s",
                run.run_id,
                ", ".join(done),
            )
        return _Found(header, state, progress, (branch_note(header.seq, run.seq),), True)

    async def _continue(self, held: OpenRun, found: _Found, wanted: ResumeRequest) -> State:
        header, state, progress = found.header, found.state, found.progress
        if header.status == "completed":
            return await self._stored(held.awaited.manager, header, wanted, state)
        if wanted.secrets:
            state = state.with_secrets(wanted.secrets)
        asked = [note.content.id for note in held.ledger.waiting() if note.kind == "question"]
        given = answers_by_id(held.run_id, asked, wanted.answer, wanted.answers)
        held.ledger.given |= given
        say, following = partial(self._say, header.run_id), progress.next
        say("checkpoint.load", node=header.node, checkpoint_id=header.id)
        say("checkpoint.resume", checkpoint_node=header.node, resume_node=following)
        exits = len(self.plan.exits)
        say("graph.start", entry_point=following, exit_points=exits, resumed=True)
        loop = self._loop(held, held.run_id)
        if found.rewound:
            await loop.rewind(state, progress, *found.notes)
        return await self._run(loop, held, state, progress)

    def _loop(self, held: OpenRun | None, run_id: str) -> Loop:
        return Loop(self.plan, held, "", self._emit(run_id), self.stop, self._triggers)

    async def _run(
        self, loop: Loop, held: OpenRun | None, state: State, progress: Progress
    ) -> State:
        with self.stop.cancellable():
            final = await loop.run(state, progress, state.lineage)
        if held is not None:
            await self._delete_completed(held.awaited.manager, held.run_id)
        return final

    async def _delete_completed(self, manager: AsyncCheckpointManager, run_id: str) -> None:
        """Delete the journal of a completed run, unless it is preserved or has a pin."""
        if self.config.preserve:
            return
        try:
            if (await asyncio.to_thread(manager.retention.marks, run_id)).pinned:
                return
            await manager.delete_run(run_id)
        except NotFoundError:
            return
        except SureholdError as error:
            logger.warning("the journal of completed run %s was not deleted: %s", run_id, error)

    async def _stored(
        self,
        manager: AsyncCheckpointManager,
        header: Header,
        wanted: ResumeRequest,
        state: State | None = None,
    ) -> State:
        """The result of a completed run."""
        if state is None:
            state = await asyncio.to_thread(self._final, manager, header)
        self._say(
            header.run_id, "checkpoint.load", node=state.node, checkpoint_id=state.checkpoint_id
        )
        if not wanted.rewinds:
            await self._delete_completed(manager, header.run_id)
        return state.with_secrets(wanted.secrets) if wanted.secrets else state

    def _final(self, manager: AsyncCheckpointManager, header: Header) -> State:
        loaded = manager.reader.load(header)
        self._tell_spent(spent_until(loaded))
        check_door(loaded, self.plan.door)
        return loaded.graph_state()

    # Does the run fit the graph?

    def _check_name(self, run: RunInfo, wanted: ResumeRequest, name: str) -> None:
        if run.name and name and run.name != name and not wanted.force:
            raise ShapeError(
                f"run {run.run_id!r} is of {run.name!r}, not of {name!r}",
                hint="resume it with the graph that began it, or give force=True",
                run_id=run.run_id,
            )

    def _check_input(self, manager: AsyncCheckpointManager, wanted: ResumeRequest) -> None:
        if wanted.given is not None:
            check_input(manager.reader, manager.hook_manager, wanted.given, self.plan.version)

    def _fitted(self, header: Header, state: State, progress: Progress, *, force: bool) -> State:
        """The state in the form that today's graph expects, or a `ShapeError`."""
        plan = self.plan
        same = header.fingerprint == plan.fingerprint
        migrated = header.schema != plan.version
        if migrated:
            values, _ = migrations.upgrade(
                plan.name, header.schema, state.to_dict(), to=plan.version
            )
            gone = [key for key in state if key not in values]
            state = state.without(*gone).merge(values)
        if not same and not migrated and not force:
            raise difference(progress.shape, plan.shape, header.run_id)
        if progress.next is not None and progress.next not in plan.nodes:
            if header.node not in plan.nodes:
                raise ShapeError(
                    f"run {header.run_id!r} continues with node {progress.next!r}, which is gone,"
                    f" and so is {header.node!r}, the node before it",
                    hint="resume from an earlier checkpoint",
                    run_id=header.run_id,
                )
            progress.next = None
        return state


def first_draft(plan: Plan, state: State) -> CheckpointDraft:
    """The first checkpoint of a run that another process is to execute."""
    first = state.at(scope="", step=0, node=None, kind="routine", status="running")
    return entry_draft(plan, first)


def entry_draft(plan: Plan, state: State) -> CheckpointDraft:
    """A checkpoint from which a run continues with the first node of its graph."""
    return draft_of_state(
        state,
        Lineage(),
        door=plan.door,
        fingerprint=plan.fingerprint,
        schema=plan.version,
        extra=partial(write_progress, Now(next=plan.entry), [], 0, plan.shape),
    )


def answers_by_id(
    run_id: str, asked: Sequence[str], answer: Any, answers: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The answers of a resume by id; a `UsageError` for one that nothing *asked*."""
    facts: dict[str, Any] = {"questions": tuple(asked)}
    facts["hint"] = f"give answers={{id: answer}}; the open ones: {', '.join(asked) or 'none'}"
    if answer is not NOTHING:
        if len(asked) != 1:
            what = f"answer= is for one question, and run {run_id!r} waits for {len(asked)}"
            raise UsageError(what, **facts)
        answers = {**answers, asked[0]: answer}
    for id in answers:
        if id not in asked:
            raise UsageError(f"run {run_id!r} does not wait for {id!r}", **facts)
    return answers
