"""Runs and checkpoints of a fleet in its storage: find, list, fork, clean up."""

from __future__ import annotations

import asyncio
import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from surehold.agents.fleet.nodes import ROUND, Crew
from surehold.agents.fleet.resume import (
    CheckpointStatus,
    check_team,
    find_checkpoint,
    find_newest,
    listed,
    outdated,
)
from surehold.core.records import Header
from surehold.doors.graph import StateGraph
from surehold.doors.resume import fork
from surehold.engine.journal import metadata_of
from surehold.engine.runs import check_not_held
from surehold.errors import UsageError
from surehold.storage.base import RunQuery

logger = logging.getLogger("surehold.fleet")


class FleetRuns(msgspec.Struct, frozen=True):
    """The runs of one fleet; without *saves*, only as long as the process lives."""

    name: str
    graph: StateGraph
    crew: Crew
    saves: bool
    keep: timedelta | None

    def new_id(self) -> str:
        """An id for a new run."""
        return f"{self.name}_{uuid.uuid4().hex[:8]}"

    async def newest(self, run_id: str) -> Header | None:
        """The newest checkpoint of a run; None if there is no such run."""
        return await asyncio.to_thread(self.graph.manager.reader.newest_of, run_id)

    async def status_of(self, checkpoint_id: str, *, check: bool = True) -> CheckpointStatus:
        """A checkpoint and its run; with *check*, a `ShapeError` if participants changed."""
        self._check_saves()
        reader = self.graph.manager.reader
        status = await asyncio.to_thread(find_checkpoint, reader, checkpoint_id, self.name)
        if check:
            check_team(status.state, self.crew.team)
        return status

    async def newest_status(self, run_id: str) -> CheckpointStatus | None:
        """The newest checkpoint of a run as `status_of` gives it; None without such a run."""
        status = await asyncio.to_thread(find_newest, self.graph.manager.reader, run_id)
        if status is not None:
            self._check_saves()
            check_team(status.state, self.crew.team)
        return status

    async def prepare(self, status: CheckpointStatus, text: str) -> tuple[str, str | None]:
        """The run that continues from a checkpoint with *text*, and its fork's origin.

        An earlier checkpoint, or another text for a completed run, makes a fork. A run that a live
        process executes is a `LeaseHeldError`.
        """
        if status.state["task"] == text:
            text = ""
        if not status.newest or (status.over and text):
            await asyncio.to_thread(check_not_held, self.graph.manager.reader, status.run_id)
            why = "is completed" if status.over else "has come further than that checkpoint"
            run_id = await self.fork(status, text)
            logger.warning("run %s %s: continuing as its fork %s", status.run_id, why, run_id)
            return run_id, status.run_id
        edit = status.heard(text, self.crew.team)
        if edit:
            metadata = {ROUND: status.state["current_round"]}
            await self.graph.checkpoint(status.run_id, edit, metadata=metadata)
        return status.run_id, None

    def _check_saves(self) -> None:
        if not self.saves:
            raise UsageError(
                "this fleet saves nothing, and has no checkpoints",
                hint="give it a checkpoint_storage",
            )

    async def fork(self, status: CheckpointStatus, text: str) -> str:
        """Fork a checkpoint, with *text* added to the history; return the new run's id."""
        run_id, header = self.new_id(), status.fork_from()
        edit = status.edited(text, self.crew.team)
        metadata = {ROUND: status.base["current_round"]}
        await fork(self.graph.manager, header.id, edit, run_id, metadata)
        return run_id

    async def resumable(self, limit: int) -> list[dict[str, Any]]:
        """See `Fleet.resumable`."""
        if not self.saves:
            return []
        reader = self.graph.manager.reader

        def look() -> list[dict[str, Any]]:
            query = RunQuery(name=self.name, not_status="completed", limit=limit)
            heads = (reader.newest(run) for run in [*reader.storage.runs(query)])
            return [listed(metadata_of(head)) for head in heads if head is not None]

        return await asyncio.to_thread(look)

    async def cleanup(self) -> int:
        """See `Fleet.cleanup`."""
        if self.keep is None or not self.saves:
            return 0
        oldest = datetime.now(UTC) - self.keep
        agents = [getattr(one, "agent", None) for one in self.crew.participants.values()]
        names = [self.name, *(f"{self.name}/{one.agent_id}" for one in agents if one)]
        storage = self.graph.manager.storage
        gone, thinned = await asyncio.to_thread(outdated, storage, names, oldest)
        for run_id in gone:
            await self.graph.manager.delete_run(run_id)
        went = [await self.graph.manager.cleanup_old_checkpoints(run_id) for run_id in thinned]
        return len(gone) + sum(went)
