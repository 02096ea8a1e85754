"""Runs of a workflow, resumed by their ids from a command or a worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoint.manager import CheckpointManager, StateManager
from holdfast.errors import Interrupted, UsageError
from holdfast.runtime.functions.definition import AsyncWorkflow, Workflow
from holdfast.runtime.result import RunResult
from holdfast.runtime.resume import ResumePlan, Saved, find_run
from holdfast.storage.base import Storage

__all__ = ["FunctionRuns"]


class FunctionRuns:
    """A workflow as an object whose runs can be resumed."""

    def __init__(
        self, workflow: Workflow[Any, Any] | AsyncWorkflow[Any, Any], storage: Storage | None = None
    ) -> None:
        self._workflow = workflow
        self._storage = storage

    def over(self, manager: StateManager) -> FunctionRuns:
        """The same workflow, on the storage of *manager*."""
        return FunctionRuns(self._workflow, manager.storage)

    def explain_resume(self, run_id: str) -> ResumePlan:
        """Say what `resume_sync` would do."""
        with CheckpointManager(self._storage) as manager:
            newest = manager.reader.newest(find_run(manager.reader, run_id))
        looked: Any = self._workflow.result(run_id, storage=self._storage)
        found: RunResult[Any] = asyncio.run(looked) if asyncio.iscoroutine(looked) else looked
        now = datetime.now(UTC)
        return ResumePlan(
            run_id=run_id,
            status=found.status,
            step=found.step,
            checkpoint_id=newest.id if newest is not None else "",
            next=self._workflow.name,
            in_doubt=tuple(one for one in found.waiting if one.kind == "effect"),
            questions=tuple(
                one
                for one in found.waiting
                if one.kind != "effect" and (one.until is None or one.until > now)
            ),
            saves=Saved(
                seconds=found.usage.seconds,
                tokens=found.usage.tokens,
                dollars=found.usage.dollars,
            ),
            error=found.error,
        )

    def resume_sync(
        self, run_id: str, *, checkpoint_id: str | None = None, force: bool = False
    ) -> RunResult[Any]:
        """Continue a run until it is completed, or raise `Interrupted` if it waits."""
        if checkpoint_id is not None:
            raise UsageError(
                "a workflow resumes after its last recorded call", hint="name the run alone"
            )
        made: Any = self._workflow.resume(run_id, storage=self._storage, wait=False)
        result: RunResult[Any] = asyncio.run(made) if asyncio.iscoroutine(made) else made
        if result.status == "waiting":
            raise Interrupted(f"run {run_id!r} waits", run_id=run_id, waiting=result.waiting)
        return result
