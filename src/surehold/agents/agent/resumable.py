"""Runs of an agent, resumed by their ids as those of a graph are."""

from __future__ import annotations

import asyncio

from surehold.agents.agent.agent import Agent
from surehold.agents.agent.graph import check_agent
from surehold.agents.agent.result import AgentResult
from surehold.core.records import Header
from surehold.doors.resume import ResumePlan, explain, find_target, no_run
from surehold.engine.hooks import HookManager
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import BudgetError, StepError, UsageError
from surehold.storage.base import Storage


class AgentRuns:
    """The runs of an agent with the methods that `surehold resume` uses of a graph.

    Where the agent fails or reaches a limit, an error is raised, as a graph would.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        """The agent, which executes one run at a time."""

    def manager_on(
        self, storage: Storage, hooks: HookManager | None = None
    ) -> AsyncCheckpointManager:
        """Make a manager over *storage* with the hooks, keys and rules of the agent's own."""
        own = self.agent
        hooks = hooks if own.hook_manager is None else own.hook_manager
        if own.state_manager is None:
            return AsyncCheckpointManager(storage, hook_manager=hooks)
        return AsyncCheckpointManager.on(storage, own.state_manager.settings.with_hooks(hooks))

    def over(self, manager: AsyncCheckpointManager) -> AgentRuns:
        """Save through *manager*, which the caller closes."""
        self.agent.state_manager = manager  # no copy: its tools may be its methods
        return self

    def explain_resume(self, run_id: str) -> ResumePlan:
        """Say what `resume_sync` would do, without doing any of it."""
        self._target(run_id, None)  # a run that is not the agent's is refused here already
        return explain(self._manager.reader, None, run_id)

    def resume_sync(
        self, run_id: str, *, checkpoint_id: str | None = None, force: bool = False
    ) -> AgentResult:
        """Continue the run, from its newest checkpoint or the one named.

        An agent's nodes always fit, so that *force* changes nothing.
        """
        self._target(run_id, checkpoint_id)
        result = asyncio.run(self.agent.resume(run_id, checkpoint_id=checkpoint_id))
        if result.status in ("completed", "waiting", "interrupted"):
            return result
        raise _told(result)

    @property
    def _manager(self) -> AsyncCheckpointManager:
        if self.agent.state_manager is None:
            raise UsageError(f"{self.agent!r} saves nothing", hint="give it state_manager=")
        return self.agent.state_manager

    def _target(self, run_id: str, checkpoint_id: str | None) -> Header:
        reader = self._manager.reader
        run = reader.run(run_id)
        if run is None:
            raise no_run(run_id)
        found = find_target(reader, run, checkpoint_id).header
        parent = found.metadata.get("parent_run")
        if parent:
            raise UsageError(
                f"run {run_id!r} is part of run {parent!r}, and continues with it",
                hint=f"surehold resume {parent}",
                run_id=run_id,
            )
        check_agent(reader, found, self.agent.agent_id)
        return found


def _told(result: AgentResult) -> BaseException:
    """The exception that a graph would raise in place of this result."""
    run_id = result.run_id
    if result.status == "failed":
        return StepError(f"the agent failed: {result.error}", node="cycle", run_id=run_id)
    return BudgetError(
        f"run {run_id!r} ended with {result.status}",
        hint="raise max_cycles or budget_usd, and resume",
        run_id=run_id,
    )
