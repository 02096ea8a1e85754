"""The checkpoints of a fleet: made, listed, shown, forked, and cleaned up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.checkpoint.inspect import metadata_of
from holdfast.checkpoint.manager import StateManager
from holdfast.core.records import Header, check_run_id
from holdfast.errors import UsageError
from holdfast.runtime.fleet.execution import stored_state
from holdfast.runtime.fleet.facts import FleetFacts
from holdfast.runtime.fleet.nodes import Crew, first_state
from holdfast.runtime.fleet.resume import (
    CheckpointStatus,
    check_team,
    find_checkpoint,
    listed,
    outdated,
)
from holdfast.runtime.graph import StateGraph
from holdfast.storage.base import RunQuery

__all__ = ["FleetCheckpoints"]


class FleetCheckpoints(FleetFacts):
    """What a fleet does with its checkpoints, short of executing a run."""

    name: str
    _crew: Crew
    _graph: StateGraph
    _manager: StateManager
    _keep: timedelta | None

    def set_workflow_id(self, workflow_id: str) -> Awaitable[None]:
        """Give the next run this id. If there is such a run already, it is gone on with.

        It may be awaited like the other methods, and is done in any case.
        """
        self._next_id = check_run_id(workflow_id)
        return _Done()

    async def create_checkpoint(self, metadata: Mapping[str, Any] | None = None) -> str | None:
        """Save the run once more, between two executions; gives the id, or None without storage.

        Every round is saved by itself; this is for marking a moment with *metadata*.
        """
        if not self._saves:
            return None
        if self._next_id is not None:
            await self._show(self._next_id)
        run_id, round_, edit = self.workflow_id or self._new_id(), self.current_round, None
        if self._state is None or self._next_id is not None:
            round_, edit = 0, first_state("", self._crew.team)
        else:
            standing = await self._standing(self._state.checkpoint_id or "")
            if not standing.newest:
                run_id = await self._forked(standing, "")
        marked = {"round": round_, **(metadata or {})}
        self._state = await self._graph.checkpoint(run_id, edit, metadata=marked)
        self._next_id = None
        return self._state.checkpoint_id

    async def restore_from_checkpoint(self, checkpoint_id: str) -> bool:
        """Have this fleet show the run as it was at that checkpoint; a unique prefix is enough.

        Nothing is executed, and nothing saved: `run` with *resume_from_checkpoint* goes on.
        `NotFoundError` if there is none, `ShapeError` if the participants are others now; either
        leaves the fleet as it was.
        """
        self._state = (await self._standing(checkpoint_id)).state
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
        if not self._saves:
            return []
        found = await self._manager.list_checkpoints(
            workflow_id or self.name, status=status, metadata=metadata, scope="", limit=limit
        )
        return [listed(one) for one in found]

    async def resumable(self, limit: int = 20) -> list[dict[str, Any]]:
        """The newest checkpoint of each run that is not completed, the newest run first."""
        if not self._saves:
            return []
        reader = self._manager.reader

        def look() -> list[dict[str, Any]]:
            query = RunQuery(name=self.name, not_status="completed", limit=limit)
            heads = (reader.newest(run) for run in [*reader.storage.runs(query)])
            return [listed(metadata_of(head)) for head in heads if head is not None]

        return await asyncio.to_thread(look)

    async def fork_checkpoint(self, checkpoint_id: str, text: str = "") -> str:
        """Begin a run with the state of a checkpoint, *text* added to what was said; gives its id.

        Nothing is executed yet, and the run that it is of is left as it is.
        """
        return await self._forked(await self._standing(checkpoint_id), text)

    async def export_checkpoint(self, checkpoint_id: str) -> str:
        """A checkpoint as JSON: checkpoint_id, workflow_id, timestamp, current_round,
        stall_count, last_response, context, metadata."""
        standing = await self._standing(checkpoint_id, check=False)
        return await self._manager.export_json(standing.header.id, "fleet")

    async def cleanup(self) -> int:
        """Remove what *cleanup_after_days* says; gives how many runs and checkpoints went.

        It is done whenever `run` is called.
        """
        if self._keep is None or not self._saves:
            return 0
        oldest = datetime.now(UTC) - self._keep
        agents = [getattr(one, "agent", None) for one in self._crew.participants.values()]
        names = [self.name, *(f"{self.name}/{one.agent_id}" for one in agents if one)]
        storage = self._manager.storage
        gone, thinned = await asyncio.to_thread(outdated, storage, names, oldest)
        for run_id in gone:
            await self._manager.delete_run(run_id)
        went = [await self._manager.cleanup_old_checkpoints(run_id) for run_id in thinned]
        return len(gone) + sum(went)

    async def _forked(self, standing: CheckpointStatus, text: str) -> str:
        run_id = self._new_id()
        edit = standing.edited(text, self._crew.team)
        await self._graph.fork(standing.fork_from().id, edit, run_id)
        await self._graph.checkpoint(run_id, metadata={"round": standing.base["current_round"]})
        return run_id

    async def _standing(self, checkpoint_id: str, *, check: bool = True) -> CheckpointStatus:
        if not self._saves:
            raise UsageError(
                "this fleet saves nothing, so that there is nothing to go on from",
                hint="give it a checkpoint_storage",
            )
        reader = self._manager.reader
        standing = await asyncio.to_thread(find_checkpoint, reader, checkpoint_id, self.name)
        if check:
            check_team(standing.state, self._crew.team)
        return standing

    async def _run_of(self, run_id: str) -> Header | None:
        reader = self._manager.reader

        def look() -> Header | None:
            run = reader.run(run_id)
            return None if run is None else reader.newest(run)

        return await asyncio.to_thread(look)

    async def _show(self, run_id: str) -> None:
        """Be what the run is now, after it did not end well."""
        if await self._run_of(run_id) is not None:
            self._state, self._next_id = await stored_state(self._manager, run_id), None

    def _new_id(self) -> str:
        return f"{self.name}_{uuid.uuid4().hex[:8]}"


class _Done:
    """What can be awaited and has happened already."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
