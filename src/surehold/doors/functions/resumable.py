"""Runs of a workflow, resumed by their ids from a command or a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from surehold.doors.functions.definition import AsyncWorkflow, Workflow
from surehold.doors.result import RunResult
from surehold.doors.resume import ResumePlan, explain
from surehold.engine.hooks import HookManager
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager, opened
from surehold.errors import UsageError
from surehold.storage.base import Storage


class FunctionRuns:
    """A workflow as an object whose runs can be resumed."""

    def __init__(
        self,
        workflow: Workflow[Any, Any] | AsyncWorkflow[Any, Any],
        manager: CheckpointManager | None = None,
    ) -> None:
        self._workflow = workflow
        self._manager = manager

    def manager_on(
        self, storage: Storage, hooks: HookManager | None = None
    ) -> AsyncCheckpointManager:
        """Make a manager over *storage* with the hooks, keys and rules of the workflow's."""
        own = self._workflow.own_manager
        if own is None:
            return AsyncCheckpointManager(storage, hook_manager=hooks)
        return AsyncCheckpointManager.on(storage, own.settings.with_hooks(hooks))

    def over(self, manager: AsyncCheckpointManager) -> FunctionRuns:
        """The same workflow, saving through *manager*."""
        return FunctionRuns(self._workflow, CheckpointManager.of(manager.face))

    def explain_resume(self, run_id: str) -> ResumePlan:
        """Say what `resume_sync` would do."""
        with opened(self._manager) as manager:
            plan = explain(manager.reader, None, run_id)
        if not plan.is_workflow or plan.next != self._workflow.name:
            raise UsageError(
                f"run {run_id!r} is not of workflow {self._workflow.name!r}", run_id=run_id
            )
        return plan

    def resume_sync(
        self, run_id: str, *, checkpoint_id: str | None = None, force: bool = False
    ) -> RunResult[Any]:
        """Continue a run until it is completed or waits."""
        if checkpoint_id is not None:
            raise UsageError(
                "a workflow resumes after its last recorded call", hint="name the run alone"
            )
        made: Any = self._workflow.resume(run_id, storage=self._manager, wait=False)
        result: RunResult[Any] = asyncio.run(made) if asyncio.iscoroutine(made) else made
        return result
