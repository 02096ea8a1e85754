"""Reports over HTTP: start a run, follow it, approve it. Killed and restarted, runs continue.

    uvicorn service:app --port 8000

The storage is the configured one: `SUREHOLD_STORAGE`, `surehold.toml`, or `.surehold/surehold.db`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import surehold
from surehold.errors import LeaseHeldError, NotFoundError, UsageError

logger = logging.getLogger("reports")
SECTIONS = ("summary", "body", "sources")
AT_REST = {"completed", "failed", "waiting"}


@surehold.step(retries=3)
async def write(topic: str, section: str) -> str:
    await asyncio.sleep(0.2)  # stands for a model call
    return f"{section} of {topic}"


@surehold.workflow
async def report(topic: str) -> str:
    sections = [await write(topic, section) for section in SECTIONS]
    editor = await surehold.wait_for("approval")
    return f"{', '.join(sections)}; approved by {editor}"


class Work:
    """Runs that this process executes in the background."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run_id: str, execution: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(self._watch(run_id, execution))
        self._tasks.add(task)  # the event loop keeps no task alive
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, run_id: str, execution: Coroutine[Any, Any, Any]) -> None:
        try:
            await execution
        except LeaseHeldError:
            logger.info("%s is executed by another process", run_id)
        except Exception:
            logger.exception("%s failed; its journal keeps the error", run_id)

    async def stop(self) -> None:
        """Cancel what is running; the next start resumes it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


work = Work()


def unfinished() -> list[str]:
    with surehold.open_storage() as storage:
        wanted = surehold.RunQuery(name="report", not_status="completed")
        return [run.run_id for run in storage.runs(wanted) if run.status not in AT_REST]


def check_storage() -> None:
    with surehold.open_storage() as storage:
        next(iter(storage.runs(surehold.RunQuery(limit=1))), None)


async def resume_when_free(run_id: str) -> None:
    """Resume a run as soon as no other process, or machine that died, holds its lease."""
    while True:
        try:
            await report.resume(run_id, wait=False)
            return
        except LeaseHeldError:
            await asyncio.sleep(5)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    for run_id in await asyncio.to_thread(unfinished):
        work.begin(run_id, resume_when_free(run_id))
    yield
    await work.stop()


app = FastAPI(title="Reports", lifespan=lifespan)


class Start(BaseModel):
    topic: str


class Approval(BaseModel):
    editor: str


async def look_up(run_id: str) -> dict[str, Any]:
    try:
        found = await report.result(run_id)
    except NotFoundError:
        raise HTTPException(404, f"there is no report {run_id}") from None
    return {
        "run_id": run_id,
        "status": found.status,
        "step": found.step,
        "value": found.value,
        "waiting": [one.name for one in found.waiting],
        "error": found.error,
    }


@app.get("/healthz")
async def health() -> dict[str, str]:
    """For a health check: the storage answers."""
    await asyncio.to_thread(check_storage)
    return {"status": "ok"}


@app.post("/reports/{run_id}", status_code=202)
async def start(run_id: str, body: Start) -> dict[str, str]:
    """Begin a report. The same request again changes nothing: the run id is the key.

    The run is recorded before the answer: killed after it, the next start executes the run.
    """
    try:
        await report.options(run_id=run_id).start(body.topic)
    except UsageError as error:  # the run was begun with another topic
        raise HTTPException(409, error.message) from None
    if (await report.result(run_id)).status not in AT_REST:
        work.begin(run_id, report.resume(run_id, wait=False))
    return {"run_id": run_id}


@app.get("/reports/{run_id}")
async def poll(run_id: str) -> dict[str, Any]:
    return await look_up(run_id)


@app.get("/reports/{run_id}/events")
async def stream(run_id: str, last_event_id: Annotated[int, Header()] = 0) -> StreamingResponse:
    """Server-sent events from the journal, until the run is completed, failed or waiting.

    A browser that reconnects, to this server or another, names the last event that it saw.
    """
    await look_up(run_id)

    async def events() -> AsyncIterator[str]:
        async for event in surehold.events(run_id, since=last_event_id, follow=True):
            data = json.dumps({"type": event.type, **event.data})
            yield f"id: {event.seq}\ndata: {data}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/reports/{run_id}/approval", status_code=202)
async def approve(run_id: str, body: Approval) -> dict[str, str]:
    """Answer what the run waits for, and resume it."""
    try:
        await asyncio.to_thread(surehold.answer, run_id, "approval", body.editor)
    except NotFoundError as error:  # no such run, or it waits for nothing
        raise HTTPException(404, error.message) from None
    work.begin(run_id, report.resume(run_id, wait=False))
    return {"run_id": run_id}
