"""`Fleet`: a manager and its participants, with a checkpoint after every round."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Unpack, cast

import msgspec

from surehold.agents.fleet.checkpoints import FleetRuns
from surehold.agents.fleet.execution import Attempt, Backoff, FleetExecution, stored_state
from surehold.agents.fleet.nodes import (
    OWN_ROUND,
    ROUND,
    Crew,
    add_nodes,
    first_state,
    history_key,
    imported_state,
)
from surehold.agents.fleet.participants import ROLES, Participant, participant_of
from surehold.agents.fleet.resume import CheckpointStatus, listed
from surehold.agents.fleet.settings import ApprovalSettings, Callbacks, Limits, PlanReview
from surehold.agents.models import Model
from surehold.agents.tools import Approval, ApprovalHandler, ApprovalRequest
from surehold.core.closing import AsyncClosing
from surehold.core.policy import Rules, check_above_zero
from surehold.core.records import check_run_id
from surehold.core.state import State
from surehold.core.values import give_out
from surehold.doors.checks import check_task
from surehold.doors.events import Event, Observer, streamed
from surehold.doors.graph import CheckpointConfig, GraphConfig, StateGraph, entry_draft
from surehold.doors.result import ModelSpent, RunResult
from surehold.doors.resume import RunHere, module_that_makes, no_run
from surehold.doors.submit import AsyncRunHandle, QueueOptions, RunHandle, StartOptions
from surehold.engine.hooks import HookManager, redacted
from surehold.engine.journal import CheckpointDraft
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import tell_failed
from surehold.errors import UsageError
from surehold.storage.base import Storage


class FleetGraph(StateGraph):
    """The graph that executes a fleet."""

    door = "fleet"


def imported_checkpoint(fields: Mapping[str, Any]) -> CheckpointDraft:
    """A checkpoint of AgenticFleet, from which a fleet continues with a plan."""
    graph = FleetGraph(GraphConfig(name="fleet"))
    add_nodes(graph, cast(Crew, None))  # the nodes are not executed here
    metadata = dict(fields.get("metadata") or {})
    status, round_ = metadata.pop("status", "running"), fields["current_round"]
    state = State.new(imported_state(fields), run_id=str(fields["workflow_id"]), name="fleet")
    state = state.at(step=round_, status=status, metadata={**metadata, ROUND: round_})
    draft = entry_draft(graph.plan(), state)
    return msgspec.structs.replace(draft, id=fields.get("checkpoint_id"))


class FleetResult(RunResult[str], frozen=True, kw_only=True):
    """The end of a fleet's run. `str` gives the answer, as does `value`.

    The status is ``completed``, ``waiting``, ``interrupted``, ``failed``, ``max_rounds_reached``,
    ``stalled`` or ``budget_exhausted``.
    """

    answer: str
    """The final answer; if a limit ended the run, the last response of a participant."""
    rounds: int
    usage: ModelSpent = ModelSpent()
    """Model calls, tokens and dollars of the whole run, resumes included."""
    checkpoint_id: str | None = None
    attempts: tuple[Attempt, ...] = ()
    """Failures that `auto_resume` got over, with what each cost and saved."""
    forked_from: str | None = None
    """The run that this one was forked from in this call."""

    def __str__(self) -> str:
        return self.answer


class Fleet(AsyncClosing):
    """Many agents and one task: a manager plans, and decides each round who does what.

    After every round everything is saved in one atomic append, every participant's history
    included. A run that was killed continues with the round it was in, and repeats no recorded
    call.

    - *manager* is a model. *participants* are, by name, async functions of the instruction,
      models, `ModelParticipant`s or autonomous agents; by default a researcher, a coder and an
      analyst, who share the manager's model.
    - *storage* is a `Storage`, an address or a registered name; *checkpoint_storage* is another
      name for it. Without one nothing is saved, and nothing else changes. With *every* (rounds)
      or *every_seconds* a round is saved when one of them is due.
    - *auto_resume* resumes a run that failed, see `Backoff`; not after an error of the program.
    - *approval_handler* asks a person at once; otherwise a run that needs approval waits.
    - *owns_storage*: close the given storage with the fleet. *hook_manager*: what checks, redacts
      or logs its records.

    >>> from surehold.testing.scripted import ScriptedModel
    >>> Fleet(ScriptedModel(["..."])).participants
    ('researcher', 'coder', 'analyst')
    """

    def __init__(
        self,
        manager: Model,
        participants: Mapping[str, Any] | None = None,
        checkpoint_storage: Storage | str | None = None,
        *,
        storage: Storage | str | None = None,
        name: str = "fleet",
        instructions: str = "",
        limits: Limits | None = None,
        approvals: ApprovalSettings | None = None,
        approval_handler: ApprovalHandler | None = None,
        plan_review: PlanReview | None = None,
        callbacks: Callbacks | None = None,
        auto_resume: Backoff | None = None,
        retention: Rules | None = None,
        cleanup_after_days: int | None = None,
        every: int | None = None,
        every_seconds: float | None = None,
        observer: str | Observer | Sequence[str | Observer] = "noop",
        owns_storage: bool = False,
        hook_manager: HookManager | None = None,
        signals: bool | None = None,
    ) -> None:
        check_above_zero(every=every, every_seconds=every_seconds)
        if not isinstance(manager, Model):
            raise UsageError(
                f"the manager is {type(manager).__name__}",
                hint="give a model: surehold.open_model('openai:gpt-5')",
            )
        if limits is not None and not isinstance(limits, Limits):
            raise UsageError(f"limits is {limits!r:.40}", hint="give Limits(...)")
        crew = Crew(
            manager=manager,
            participants=_participants(participants, manager),
            instructions=instructions,
            limits=limits or Limits(),
            approvals=approvals or ApprovalSettings(enabled=False),
            plan_review=plan_review or PlanReview(),
            callbacks=callbacks or Callbacks(),
        )
        if storage is not None:
            if checkpoint_storage is not None:
                raise UsageError("storage= and checkpoint_storage= are given", hint="give one")
            checkpoint_storage = storage
        saves = checkpoint_storage is not None
        keep = _days(cleanup_after_days)
        rules = retention or Rules()
        if keep is not None and rules.max_age is None:
            rules = dataclasses.replace(rules, max_age=keep)
        # Without a storage a run still needs a journal while it lasts: to wait, and to be resumed.
        where = checkpoint_storage if saves else "memory://"
        self._manager = AsyncCheckpointManager(where, retention=rules, hook_manager=hook_manager)
        interval = 1 if every is None and every_seconds is None else every or 0
        checkpoint = CheckpointConfig(
            store="memory", interval=interval, seconds=every_seconds, preserve=saves
        )
        config = GraphConfig(
            name=name,
            observer=observer,
            checkpoint=checkpoint,
            max_iterations=1_000_000,
            signals=signals,
        )
        graph = FleetGraph(config, manager=self._manager)
        graph.found_as(self, module_that_makes(self))
        add_nodes(graph, crew)
        self.name = name
        self._crew = crew
        self.graph = graph
        """The graph that executes it: to explain a resume, compare runs or draw one."""
        self.participants = tuple(crew.participants)
        """The names of its participants."""
        self.checkpointing = saves
        """True if its runs are saved."""
        self.limits = crew.limits
        """The limits of a run."""
        self._owned = checkpoint_storage if owns_storage else None
        backoff = auto_resume or Backoff(resumes=0)
        self._execution = FleetExecution(graph, crew, backoff, approval_handler)
        self._runs = FleetRuns(name, graph, crew, saves=saves, keep=keep)
        self._state: State | None = None
        self._next_id: str | None = None

    @classmethod
    def from_yaml(
        cls,
        path: str | os.PathLike[str] = "workflow.yaml",
        *,
        tools: Mapping[str, Any] | None = None,
        checkpoint_storage: Storage | str | None = None,
        approval_handler: ApprovalHandler | None = None,
        observer: str | Observer | Sequence[str | Observer] = "noop",
    ) -> Fleet:
        """Build the fleet that a `workflow.yaml` describes.

        *tools* are the functions, or `Tool`s, that it names; *checkpoint_storage* replaces the
        storage that it names.
        """
        from surehold.agents.fleet.workflow_file import build_fleet, read_workflow

        return build_fleet(
            read_workflow(path),
            tools=tools or {},
            checkpoint_storage=checkpoint_storage,
            approval_handler=approval_handler,
            observer=observer,
        )

    # The run that was executed or restored last; empty before

    @property
    def state(self) -> State | None:
        """The state of the run; None before there is one."""
        return self._state

    @property
    def workflow_id(self) -> str | None:
        """The id of the run, or the one set for the next run."""
        return self._next_id or (self._state.run_id if self._state is not None else None)

    @property
    def current_checkpoint_id(self) -> str | None:
        """The newest known checkpoint of the run."""
        saved = self._state is not None and self.checkpointing
        return self._state.checkpoint_id if self._state is not None and saved else None

    @property
    def task(self) -> str:
        """The task of the run."""
        return str(self._value("task", ""))

    @property
    def current_round(self) -> int:
        """Number of completed rounds."""
        return int(self._value("current_round", 0))

    @property
    def stall_count(self) -> int:
        """Number of rounds without progress, less those with progress since."""
        return int(self._value("stall_count", 0))

    @property
    def reset_count(self) -> int:
        """Number of times that it began again with another plan."""
        return int(self._value("reset_count", 0))

    @property
    def last_response(self) -> str | None:
        """The last response of a participant; once completed, the answer."""
        response: str | None = self._value("last_response", None)
        return response

    @property
    def context(self) -> dict[str, Any]:
        """The participants with their descriptions, and the task as it was given."""
        return dict(self._value("context", {}))

    def history_of(self, participant: str) -> list[dict[str, Any]]:
        """Messages to and from a participant since the last reset."""
        return list(self._value(history_key(participant), []))

    def _value(self, key: str, default: Any) -> Any:
        return default if self._state is None else give_out(self._state.get(key, default))

    # Executing

    async def run(
        self,
        user_input: str = "",
        resume_from_checkpoint: str | None = None,
        *,
        run_id: str | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> FleetResult:
        """Work on a task, or continue a run.

        With *run_id* that run is begun, or continued if the storage holds it; called inside a run
        that is recorded, it is the run that this call began, on every replay.
        From the newest checkpoint of an unfinished run, that run continues with the next round;
        *user_input*, if it is not the task itself, is added to the history, after the current
        round if that has begun. From an earlier checkpoint, or with another text from a completed
        one, a fork continues: `FleetResult.run_id` and `forked_from` name both. A completed run
        otherwise returns its stored result.

        A run that waits for an approval is a result with status ``waiting``, and `answer`
        continues it. A limit is a status of the result too. *on_event* is called with every event,
        see `stream`.

        Raises `StepError` if a participant or a model failed; the run can be resumed.
        `LeaseHeldError`: a live process executes the run.
        """
        check_task(user_input)
        if run_id is not None:
            if resume_from_checkpoint is not None:
                raise UsageError(
                    "run_id= and resume_from_checkpoint= are given", hint="give one of them"
                )
            self._next_id = check_run_id(run_id)
        elif self._next_id is None and resume_from_checkpoint is None:
            here = RunHere(self.name, user_input) if user_input and self.checkpointing else None
            if here is not None and here.run_id is not None:
                return await self._run_here(here, user_input, on_event)
        await self.cleanup()
        if resume_from_checkpoint is not None:
            status = await self._runs.status_of(resume_from_checkpoint)
            return await self._continued(status, user_input, on_event)
        run_id = run_id or self._next_id or self._runs.new_id()
        newest = await self._runs.newest_status(run_id) if self._next_id else None
        if not user_input and newest is None:
            raise UsageError("there is no task", hint="give one, or resume_from_checkpoint=")
        if newest is not None:
            task = newest.state["task"]
            kept = redacted(user_input, self._manager.hook_manager)
            if user_input and task not in ("", user_input, kept):
                raise UsageError(
                    f"run {run_id!r} exists with a different task: {task[:60]!r}",
                    hint="give the same task to continue it, another workflow id to begin a new"
                    " run, or resume_from_checkpoint= to add a text to it",
                    run_id=run_id,
                )
            return await self._continued(newest, user_input, on_event)
        values = first_state(user_input, self._crew.team)
        state = State.new(values, run_id=run_id, name=self.name)
        return await self._executed(run_id, state, on_event=on_event)

    async def _continued(
        self, status: CheckpointStatus, text: str, on_event: Callable[[Event], None] | None
    ) -> FleetResult:
        run_id, source = await self._runs.prepare(status, text)
        looked = status if source is None else None
        return await self._executed(run_id, forked_from=source, on_event=on_event, looked=looked)

    async def _run_here(
        self, here: RunHere, task: str, on_event: Callable[[Event], None] | None
    ) -> FleetResult:
        status = ""
        try:
            result = await self.run(task, run_id=here.run_id, on_event=on_event)
            status = result.status
            return result
        finally:
            here.ended(status)

    async def resume(
        self, run_id: str, *, on_event: Callable[[Event], None] | None = None
    ) -> FleetResult:
        """Continue a run that the storage holds; a completed one returns its result."""
        newest = await self._runs.newest_status(check_run_id(run_id))
        if newest is None:
            raise no_run(run_id)
        await self.cleanup()
        self._next_id = run_id
        return await self._continued(newest, "", on_event)

    stream = streamed(run)
    """`run`, as the events that happen: ``async for event in fleet.stream(task)``.

    ``model.text`` carries the text of the manager and the participants as it comes. See
    `StateGraph.stream`.
    """

    async def start(self, user_input: str, **options: Unpack[StartOptions]) -> AsyncRunHandle[None]:
        """Queue a run for a worker; give a handle. See `surehold.workflow`'s ``start``."""
        if not self.checkpointing:
            raise UsageError(f"{self!r} saves nothing", hint="give storage=")
        wanted = QueueOptions(**options)
        return AsyncRunHandle(await asyncio.to_thread(self.submit, user_input, wanted, self.graph))

    def submit(self, user_input: str, options: QueueOptions, graph: StateGraph) -> RunHandle[None]:
        """Save the run's first state in a queue; blocking. `start` is for users."""
        check_task(user_input)
        if not user_input:
            raise UsageError("there is no task", hint="give one")
        values = first_state(user_input, self._crew.team)
        state = State.new(values, run_id=options.id_for(self.name), name=self.name)
        return graph.submit(state, options, ("task",))

    async def pending(self, workflow_id: str | None = None) -> list[ApprovalRequest]:
        """The approvals that a run, or every run of the storage, waits for."""
        return await asyncio.to_thread(self._execution.pending, workflow_id)

    async def answer(
        self,
        workflow_id: str,
        approval: Approval | bool,
        *,
        request_id: str | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> FleetResult:
        """Answer what a run, or an agent in it, waits for, and continue the fleet's run.

        Without a *request_id* there must be exactly one request. A request that has expired and is
        to be rejected then is rejected, whatever *approval* says.
        """
        waiting = await self.pending(workflow_id)
        found = [one for one in waiting if request_id in (None, one.request_id)]
        if len(found) != 1:
            there = ", ".join(one.request_id for one in waiting) or "nothing"
            raise UsageError(
                f"run {workflow_id!r} waits for: {there}", hint="name one of them as request_id"
            )
        newest = await self._runs.newest(workflow_id)
        run_id = newest.metadata.get("parent_run", workflow_id) if newest else workflow_id
        answers = {found[0].request_id: msgspec.to_builtins(approval)}
        answers = await self._execution.distribute(run_id, found, answers)
        return await self._executed(run_id, answers=answers, on_event=on_event)

    async def _executed(
        self,
        run_id: str,
        state: State | None = None,
        answers: Mapping[str, Any] | None = None,
        forked_from: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        looked: CheckpointStatus | None = None,
    ) -> FleetResult:
        try:
            ended = await self._execution.run(run_id, state, answers, on_event, looked)
        except BaseException:
            await self._show(run_id)
            raise
        final = ended.state
        self._state, self._next_id = final, None
        answer = final.get("answer") or final["last_response"] or ""
        if final.status == "failed":
            tell_failed(run_id, ended.error)
        return FleetResult(
            answer=answer,
            returned=answer if final.status == "completed" else answer or None,
            state=final,
            step=final.step,
            run_id=run_id,
            rounds=final["current_round"],
            status=final.status,
            usage=ModelSpent.of(final["usage"]),
            checkpoint_id=self.current_checkpoint_id,
            attempts=ended.attempts,
            error=ended.error,
            waiting=ended.waiting,
            saved=ended.saved,
            forked_from=forked_from,
        )

    async def _show(self, run_id: str) -> None:
        """Show the run as it is now, after it did not end well."""
        if await self._runs.newest(run_id) is not None:
            self._state, self._next_id = await stored_state(self._manager, run_id), None

    # Checkpoints

    def set_workflow_id(self, workflow_id: str) -> Awaitable[None]:
        """Give the next run this id. If there is such a run already, it continues.

        It may be awaited like the other methods, and takes effect in any case.
        """
        self._next_id = check_run_id(workflow_id)
        return _Done()

    async def create_checkpoint(self, metadata: Mapping[str, Any] | None = None) -> str | None:
        """Save the run between two executions; return the id, or None without storage.

        Every round is saved anyway; this marks a moment with *metadata*.
        """
        if metadata is not None and not isinstance(metadata, Mapping):
            raise UsageError(
                f"the metadata is {metadata!r}", hint="give a mapping, such as {'note': 'draft'}"
            )
        if not self.checkpointing:
            return None
        if self._next_id is not None:
            await self._show(self._next_id)
        run_id, round_, edit = self.workflow_id or self._runs.new_id(), self.current_round, None
        if self._state is None or self._next_id is not None:
            round_, edit = 0, first_state("", self._crew.team)
        else:
            status = await self._runs.status_of(self._state.checkpoint_id or "")
            if not status.newest:
                run_id = await self._runs.fork(status, "")
        marked = {ROUND: round_, **(metadata or {})}
        if metadata is not None and ROUND in metadata:
            marked[OWN_ROUND] = round_
        self._state = await self.graph.checkpoint(run_id, edit, metadata=marked)
        self._next_id = None
        return self._state.checkpoint_id

    async def restore_from_checkpoint(self, checkpoint_id: str) -> bool:
        """Show the run as it was at that checkpoint; a unique prefix of the id is enough.

        Nothing is executed or saved: `run` with *resume_from_checkpoint* continues. `NotFoundError`
        if there is no such checkpoint, `ShapeError` if the participants are others now; either
        leaves the fleet as it was.
        """
        self._state = (await self._runs.status_of(checkpoint_id)).state
        self._next_id = None
        return True

    async def list_checkpoints(
        self,
        workflow_id: str | None = None,
        *,
        status: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> list[dict[str, Any]]:
        """The checkpoints of a run, or of all runs of this fleet, newest first."""
        if not self.checkpointing:
            return []
        found = await self._manager.list_checkpoints(
            workflow_id or self.name, status=status, metadata=metadata, scope="", limit=limit
        )
        return [listed(one) for one in found]

    async def resumable(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest checkpoint of each unfinished run, the newest run first."""
        return await self._runs.resumable(limit)

    async def fork_checkpoint(self, checkpoint_id: str, text: str = "") -> str:
        """Begin a run with the state of a checkpoint and *text*; return its id.

        Nothing is executed, and the source run stays as it is.
        """
        return await self._runs.fork(await self._runs.status_of(checkpoint_id), text)

    async def export_checkpoint(self, checkpoint_id: str) -> str:
        """A checkpoint as JSON: checkpoint_id, workflow_id, timestamp, current_round,
        stall_count, last_response, context, metadata."""
        status = await self._runs.status_of(checkpoint_id, check=False)
        return await self._manager.export_json(status.header.id, "fleet")

    async def cleanup(self) -> int:
        """Remove what *cleanup_after_days* says; return the runs and checkpoints gone.

        `run` calls it.
        """
        return await self._runs.cleanup()

    # Closing

    async def close(self) -> None:
        """Finish pending saves, and close the storage if this fleet owns it."""
        await self._manager.close()
        if isinstance(self._owned, Storage):
            self._owned.close()

    def __repr__(self) -> str:
        return f"<Fleet {self.name} of {', '.join(self.participants)}>"


class _Done:
    """An awaitable that has happened already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


def _participants(given: Mapping[str, Any] | None, manager: Model) -> dict[str, Participant]:
    """The participants of a fleet by name; without any, the usual roles on *manager*."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"the participants are {type(given).__name__}", hint="give a dict by name")
    named = dict.fromkeys(ROLES, manager) if given is None else given
    if not named:
        raise UsageError(
            "the fleet has no participants", hint="name some, or leave participants= out"
        )
    if taken := {"manager", "user"} & named.keys():
        raise UsageError(f"no participant can be named {min(taken)!r}", hint="rename it")
    return {name: participant_of(name, what) for name, what in named.items()}


def _days(number: int | None) -> timedelta | None:
    if number is None:
        return None
    if type(number) is not int or number < 1:
        raise UsageError(f"cleanup_after_days is {number!r}", hint="give a number of days from 1")
    return timedelta(days=number)
