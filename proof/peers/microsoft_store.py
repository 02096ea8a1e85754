"""Agent Framework's `FileCheckpointStorage`, as it comes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    handler,
)

from proof.peers.states import MOMENT, Tell, state

_NAME = "run"


def _storage(directory: str) -> FileCheckpointStorage:
    logging.getLogger("agent_framework").setLevel(logging.ERROR)
    return FileCheckpointStorage(Path(directory) / "runs")


def save_for_ever(tell: Tell, directory: str) -> None:
    asyncio.run(_save_for_ever(tell, directory))


async def _save_for_ever(tell: Tell, directory: str) -> None:
    storage = _storage(directory)
    latest = await storage.get_latest(workflow_name=_NAME)
    number = latest.state["number"] if latest else 0
    previous = latest.checkpoint_id if latest else None
    while True:
        number += 1
        checkpoint = WorkflowCheckpoint(
            workflow_name=_NAME,
            graph_signature_hash="0" * 64,
            previous_checkpoint_id=previous,
            state=state(number),
            iteration_count=number,
        )
        previous = await storage.save(checkpoint)
        tell("saved", number)


def look(tell: Tell, directory: str) -> None:
    asyncio.run(_look(tell, directory))


async def _look(tell: Tell, directory: str) -> None:
    storage = _storage(directory)
    latest = await storage.get_latest(workflow_name=_NAME)
    tell("latest", latest and latest.state["number"], latest and latest.state["text"])
    for one in await storage.list_checkpoints(workflow_name=_NAME):
        tell("found", one.state["number"], one.state["text"])


class _First(Executor):
    @handler
    async def run(self, message: str, context: WorkflowContext[str]) -> None:
        await context.send_message(message)


class _Second(Executor):
    def __init__(self, tell: Tell, seconds: float) -> None:
        super().__init__(id="second")
        self._tell = tell
        self._seconds = seconds

    @handler
    async def run(self, message: str, context: WorkflowContext[Any, str]) -> None:
        self._tell("acted")
        await asyncio.sleep(self._seconds)
        await context.yield_output(message)


def _workflow(tell: Tell, storage: FileCheckpointStorage, seconds: float) -> Any:
    first, second = _First(id="first"), _Second(tell, seconds)
    builder = WorkflowBuilder(
        name=_NAME, start_executor=first, checkpoint_storage=storage, output_from=[second]
    )
    return builder.add_edge(first, second).build()


def begin(tell: Tell, directory: str) -> None:
    asyncio.run(_workflow(tell, _storage(directory), 3600).run("go"))


def resume(tell: Tell, directory: str) -> None:
    asyncio.run(_resume(tell, directory))


async def _resume(tell: Tell, directory: str) -> None:
    storage = _storage(directory)
    latest = await storage.get_latest(workflow_name=_NAME)
    assert latest is not None
    await _workflow(tell, storage, MOMENT).run(checkpoint_id=latest.checkpoint_id)
    tell("ended")
