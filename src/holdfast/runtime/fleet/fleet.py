"""`Fleet`: a manager and its participants, with a checkpoint after every round."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.checkpoint.effects import pending
from holdfast.checkpoint.manager import StateManager
from holdfast.core.policy import Rules
from holdfast.core.state import State
from holdfast.errors import UsageError
from holdfast.runtime.fleet.checkpoints import FleetCheckpoints
from holdfast.runtime.fleet.execution import FleetExecution
from holdfast.runtime.fleet.nodes import Crew, add_nodes, first_state
from holdfast.runtime.fleet.participants import ROLES, participant_of
from holdfast.runtime.fleet.resume import CheckpointStatus, other_task
from holdfast.runtime.fleet.retrying import Attempt, Backoff
from holdfast.runtime.fleet.settings import ApprovalSettings, Callbacks, Limits, PlanReview
from holdfast.runtime.graph import CheckpointConfig, GraphConfig, StateGraph
from holdfast.runtime.models import Model
from holdfast.runtime.tools import (
    Approval,
    ApprovalHandler,
    ApprovalRequest,
    answer_tree,
    requests_in,
)
from holdfast.runtime.watch import Observer
from holdfast.storage.base import Storage

__all__ = ["Fleet", "FleetResult"]


class FleetResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of a fleet ended. `str` gives the answer."""

    answer: str
    """The final answer; if a limit ended the run, what a participant said last."""
    run_id: str
    rounds: int
    status: str
    """``completed``, ``max_rounds_reached``, ``stalled`` or ``budget_exhausted``."""
    usage: dict[str, Any]
    """Model calls, tokens and dollars of the whole run, resumes included."""
    checkpoint_id: str | None = None
    attempts: tuple[Attempt, ...] = ()
    """The failures that `auto_resume_on_failure` got over, with what each cost and saved."""

    def __str__(self) -> str:
        return self.answer


class Fleet(FleetCheckpoints):
    """Many agents, one task: a manager plans, and says round by round who does what.

    After every round all of it is saved, every participant's history included, in one atomic
    append. A run that was killed goes on with the round it was in, and repeats no recorded call.

    - *manager* is a model. *participants* are, by name, async functions of the instruction,
      models, `ModelParticipant`s or autonomous agents; by default a researcher, a coder and an
      analyst, who share the manager's model.
    - *checkpoint_storage* is a storage, an address or a registered name. Without one nothing is
      saved, and nothing else changes.
    - *auto_resume* resumes a run that failed by itself, see `Backoff`.
    - *approval_handler* asks a person at once; otherwise a run that needs one is parked.
    - *owns_storage*: a storage that was given is closed with the fleet.

    >>> from holdfast.testing.scripted import ScriptedModel
    >>> Fleet(ScriptedModel(["..."])).participants
    ('researcher', 'coder', 'analyst')
    """

    def __init__(
        self,
        manager: Model,
        participants: Mapping[str, Any] | None = None,
        checkpoint_storage: Storage | str | None = None,
        *,
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
        observer: str | Observer | Sequence[str | Observer] = "noop",
        owns_storage: bool = False,
    ) -> None:
        if not isinstance(manager, Model):
            raise UsageError(f"the manager is a {type(manager).__name__}", hint="give a model")
        given = dict.fromkeys(ROLES, manager) if participants is None else dict(participants)
        if not given:
            raise UsageError("a fleet without participants", hint="name some, or leave them out")
        if taken := {"manager", "user"} & given.keys():
            raise UsageError(f"no participant can be named {min(taken)!r}", hint="rename it")
        self._crew = Crew(
            manager=manager,
            participants={one: participant_of(one, what) for one, what in given.items()},
            instructions=instructions,
            limits=limits or Limits(),
            approvals=approvals or ApprovalSettings(enabled=False),
            plan_review=plan_review or PlanReview(),
            callbacks=callbacks or Callbacks(),
        )
        self.name = name
        self._saves = checkpoint_storage is not None
        self._owned = checkpoint_storage if owns_storage else None
        self._keep = None if cleanup_after_days is None else timedelta(days=cleanup_after_days)
        rules = retention or Rules()
        if cleanup_after_days is not None and rules.max_age is None:
            rules = dataclasses.replace(rules, max_age=self._keep)
        # Without a storage a run still needs a journal while it lasts: to be parked, and resumed.
        self._manager = StateManager(
            checkpoint_storage if self._saves else "memory://", retention=rules
        )
        checkpoint = CheckpointConfig(store="memory", interval=1, preserve=self._saves)
        config = GraphConfig(
            name=name, observer=observer, checkpoint=checkpoint, max_iterations=1_000_000
        )
        self._graph = StateGraph(config, manager=self._manager)
        add_nodes(self._graph, self._crew)
        self._running = FleetExecution(
            self._graph, auto_resume or Backoff(resumes=0), approval_handler
        )

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
        """The fleet that a `workflow.yaml` describes.

        *tools* are the functions, or `Tool`s, that it names; *checkpoint_storage* takes the place
        of the storage that it names.
        """
        from holdfast.runtime.fleet.workflow_file import build_fleet, read_workflow

        return build_fleet(
            read_workflow(path),
            tools=tools or {},
            checkpoint_storage=checkpoint_storage,
            approval_handler=approval_handler,
            observer=observer,
        )

    # What it is

    @property
    def graph(self) -> StateGraph:
        """The graph that executes it: to explain a resume, to compare runs, to draw one."""
        return self._graph

    @property
    def participants(self) -> tuple[str, ...]:
        """The names of those who take part."""
        return tuple(self._crew.participants)

    @property
    def checkpointing(self) -> bool:
        """Whether its runs are saved."""
        return self._saves

    @property
    def limits(self) -> Limits:
        """How far a run may go."""
        return self._crew.limits

    # Executing

    async def run(
        self, user_input: str = "", resume_from_checkpoint: str | None = None
    ) -> FleetResult:
        """Have the fleet work on a task, or go on with a run.

        From the newest checkpoint of a run that is not completed, that run goes on with the next
        round; *user_input*, if it is not the task itself, joins the history, after the round if
        that was in its middle. From an earlier checkpoint, or with another text from a completed
        one, a new run is forked, whose id the result tells; a completed run otherwise gives its
        stored result.

        `StepError` is a participant or a model that failed, `Interrupted` a run that is parked for
        an approval: both can be resumed. A limit is no error but a status of the result.
        """
        await self.cleanup()
        if resume_from_checkpoint is not None:
            run_id = await self._prepared(resume_from_checkpoint, user_input)
            return await self._executed(run_id)
        if not user_input:
            raise UsageError("there is no task", hint="give one, or resume_from_checkpoint=")
        run_id = self._next_id or self._new_id()
        run = await self._run_of(run_id) if self._next_id else None
        if run is not None:
            standing = await self._standing(run.id)
            if standing.state["task"] not in ("", user_input):
                raise other_task(run_id, standing.state["task"])
            return await self._executed(await self._prepared(run.id, user_input))
        values = first_state(user_input, self._crew.team)
        return await self._executed(run_id, State.new(values, run_id=run_id, name=self.name))

    async def pending(self, workflow_id: str | None = None) -> list[ApprovalRequest]:
        """What a run, or all runs of the storage, wait to have approved."""
        storage = self._manager.storage
        return requests_in(await asyncio.to_thread(pending, workflow_id, storage=storage))

    async def answer(
        self, workflow_id: str, approval: Approval | bool, *, request_id: str | None = None
    ) -> FleetResult:
        """Answer what a run waits for, an agent in a fleet included, and go on with the fleet.

        Without a *request_id* there must be one request only. If its time is over and it is to be
        rejected then, it is rejected, whatever is said now.
        """
        waiting = await self.pending(workflow_id)
        found = [one for one in waiting if request_id in (None, one.request_id)]
        if len(found) != 1:
            there = ", ".join(one.request_id for one in waiting) or "nothing"
            raise UsageError(
                f"run {workflow_id!r} waits for: {there}", hint="name one of them as request_id"
            )
        newest = await self._run_of(workflow_id)
        run_id = newest.metadata.get("parent_run", workflow_id) if newest else workflow_id
        answers = {found[0].request_id: answer_tree(approval)}
        answers = await self._running.told(run_id, found, answers)
        return await self._executed(run_id, answers=answers)

    async def _executed(
        self,
        run_id: str,
        state: State | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> FleetResult:
        try:
            final, attempts = await self._running.to_the_end(run_id, state, answers)
        except BaseException:
            await self._show(run_id)
            raise
        self._state, self._next_id = final, None
        return FleetResult(
            answer=final.get("answer") or final["last_response"] or "",
            run_id=run_id,
            rounds=final["current_round"],
            status=final.status,
            usage=dict(final["usage"]),
            checkpoint_id=self.current_checkpoint_id,
            attempts=attempts,
        )

    # Going on

    async def _prepared(self, checkpoint_id: str, text: str) -> str:
        """The run to go on with; a fork, where that is what is wanted."""
        standing = await self._standing(checkpoint_id)
        if standing.state["task"] == text:
            text = ""
        if not standing.newest or (standing.over and text):
            return await self._forked(standing, text)
        await self._hear(standing, text)
        return standing.run_id

    async def _hear(self, standing: CheckpointStatus, text: str) -> None:
        """Put *text* where the fleet finds it."""
        edit = standing.heard(text, self._crew.team)
        if edit:
            state = standing.state
            await self._graph.checkpoint(
                standing.run_id, edit, metadata={"round": state["current_round"]}
            )

    # Closing

    async def close(self) -> None:
        """Finish what is being saved, and close the storage if it is this fleet's own."""
        await self._manager.close()
        if isinstance(self._owned, Storage):
            self._owned.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Fleet {self.name} of {', '.join(self.participants)}>"
