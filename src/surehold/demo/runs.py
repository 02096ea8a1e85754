"""The runs that `surehold demo` leaves."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from surehold.demo.graph import OFFLINE
from surehold.demo.graph import graph as bare
from surehold.doors.resume import edited
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.errors import StepError


def make_runs(manager: CheckpointManager) -> None:
    """A completed, a failed, a waiting and a forked run of one graph."""
    saver = AsyncCheckpointManager(manager.storage)
    graph = bare.over(saver)
    graph.run_sync({"topic": "kelp"}, run_id="report-mon")
    graph.resume_sync("report-mon", answer=True)
    outage = OFFLINE.set(True)
    with suppress(StepError):
        graph.run_sync({"topic": "lichen"}, run_id="report-tue")
    OFFLINE.reset(outage)
    graph.run_sync({"topic": "lichen"}, run_id="report-wed")
    third = manager.list_checkpoints("report-mon", kind="routine")[-4]
    change = edited({"audience": "children"})
    manager.fork_from_checkpoint(third.checkpoint_id, "report-mon-kids", change=change)
    graph.resume_sync("report-mon-kids")
    asyncio.run(saver.close())
    final = manager.latest("report-mon")
    assert final is not None
    manager.tag(final.checkpoint_id, "published")
    manager.pin(third.checkpoint_id)
