"""An activity of a Temporal workflow beside a bare commit and a step of ours.

The development server keeps its SQLite file on the disk where the bare commits go; server, worker
and client are on one machine. A worker elsewhere adds the way there to each activity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import surehold
from benchmarks.peers import MISSING
from benchmarks.prose import prose
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, files_size, settings_of, text_of
from surehold import SQLiteStorage

try:
    from temporalio import activity, workflow
    from temporalio.client import Client
    from temporalio.worker import UnsandboxedWorkflowRunner, Worker
    from tests.e2e.engines.clusters import TemporalServer
except ImportError:  # pragma: no cover - the peer is not installed
    activity = workflow = None  # type: ignore[assignment]

__all__ = ["measure"]

_ROUNDS = 10
_STEPS = 30
_KEPT = 1000
_TEXT = 1000


def measure(directory: Path) -> Iterator[Line]:
    """Time rounds of recorded calls in turns with bare commits, and weigh a thousand results."""
    what = "an activity of Temporal / bare commit"
    if activity is None:
        yield Line(what, None, note=f"Temporal is {MISSING}")
        return
    server = TemporalServer(directory).start()
    try:
        times = _rounds(directory, server.address)
        note = f"{times.median('activity') * 1e3:.2f} ms"
        yield Line(what, times.ratio("activity", "bare"), note=note)
        note = f"{times.median('step') * 1e3:.2f} ms, in the same turns"
        yield Line("a step of a workflow / bare commit", times.ratio("step", "bare"), note=note)
        before = files_size(directory / "temporal.db")
        asyncio.run(_execute(server.address, _KEPT, _TEXT))
        grown = files_size(directory / "temporal.db") - before
        what = f"{_KEPT:,} activities that each return 1 KB: the server's file grows by, / content"
        yield Line(what, grown / (_KEPT * _TEXT))
        yield Line("as many steps of ours: the file, / content", _kept(directory / "kept.db"))
    finally:
        server.stop()


if activity is not None:

    @activity.defn
    async def work(size: int) -> str:
        return prose(0, size)

    @workflow.defn
    class Many:
        @workflow.run
        async def run(self, steps: int, size: int) -> int:
            for _ in range(steps):
                await workflow.execute_activity(
                    work, size, start_to_close_timeout=timedelta(seconds=30)
                )
            return steps


async def _execute(address: str, steps: int, size: int) -> float:
    """Execute the workflow, and give the seconds that it took."""
    client = await Client.connect(address)
    async with Worker(
        client,
        task_queue="bench",
        workflows=[Many],
        activities=[work],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        started = time.perf_counter()
        await client.execute_workflow(
            Many.run, args=[steps, size], id=f"bench-{started}", task_queue="bench"
        )
        return time.perf_counter() - started


@surehold.step(in_doubt="retry")
def step(size: int) -> str:
    return prose(0, size)


@surehold.workflow(name="bench beside temporal")
def many(steps: int, size: int) -> int:
    for _ in range(steps):
        step(size)
    return steps


def _kept(path: Path) -> float:
    """Bytes of a database with a thousand results, divided by those of the results."""
    with SQLiteStorage(path) as storage:
        many.run(_KEPT, _TEXT, run_id="kept", storage=storage)
    return files_size(path) / (_KEPT * _TEXT)


def _rounds(directory: Path, address: str) -> Times:
    times = Times()
    with SQLiteStorage(directory / "ours.db") as storage:
        bare = BareCommits(directory / "bare.db", settings_of(storage))
        asyncio.run(_execute(address, _STEPS, 10))  # whatever is loaded first
        for number in range(_ROUNDS):
            took = asyncio.run(_execute(address, _STEPS, 10))
            times.taken.setdefault("activity", []).append(took / _STEPS)
            started = time.perf_counter()
            many.run(_STEPS, 10, run_id=f"bench-{number}", storage=storage)
            took = time.perf_counter() - started
            times.taken.setdefault("step", []).append(took / _STEPS)
            for _ in range(_STEPS):
                times.time("bare", lambda: bare.commit(text_of({"value": prose(0, 10)})))
        bare.close()
    return times
