"""One run for a program that started it: its outcome, or what it waits for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from surehold.core.records import OVER
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import Waiting, pending, status_of_run, waiting_now
from surehold.storage.base import RecordQuery, RunInfo, Storage
from surehold.storage.queueing import queues_in
from surehold.views.documents import Document, raw
from surehold.views.timeline import failure_of
from surehold.views.values import state_at


class RunOutcome(Document, kw_only=True, tag="run"):
    """A run, with its outcome if it has ended."""

    run_id: str
    name: str
    door: str
    status: str
    step: int
    over: bool
    """True if nothing will happen to it any more by itself or by an answer."""
    value: Any = None
    """The return value of a completed workflow."""
    state: Any = None
    """The state of a graph, an agent or a fleet."""
    error: str = ""
    waiting: list[Waiting]
    started_at: datetime
    saved_at: datetime


class Accepted(Document, kw_only=True, tag="accepted"):
    """A request that is stored; what it asks for happens soon."""

    run_id: str


class Code(msgspec.Struct, kw_only=True, frozen=True):
    """Code that can be started."""

    code: str
    """Its name: ``module:name``."""
    version: int
    door: str
    about: str


class CodeList(Document, kw_only=True, tag="code"):
    """The code that can be started."""

    code: list[Code]


def is_over(storage: Storage, run: RunInfo) -> bool:
    """True if nothing will happen to a run any more by itself or by an answer."""
    shown = status_of_run(storage, run)
    if shown in (*OVER, "dead"):
        return True
    if shown in ("running", "queued", "waiting", "stale", "saved"):
        return False
    queues = queues_in(storage)
    entry = queues.entry_of(run.run_id) if queues is not None else None
    return entry is None or entry.state in ("dead", "cancelled")


def read_outcome(manager: CheckpointManager, run: RunInfo) -> RunOutcome:
    """The outcome of a run, or what it waits for."""
    storage, reader = manager.storage, manager.reader
    query = RecordQuery(run_id=run.run_id, scope="", limit=1)
    newest = next(iter(storage.headers(query)), None)
    value = state = None
    error, waiting = "", list[Waiting]()
    if newest is not None:
        told = msgspec.json.decode(state_at(manager, newest), type=dict[str, msgspec.Raw])
        if run.door != "function":
            state = told
        elif run.status == "completed":
            value = told.get("result")
        record = next(iter(storage.read(run.run_id, first=newest.seq, last=newest.seq)), None)
        error = failure_of(reader, record)[0] if record is not None else ""
    if run.status in ("waiting", "interrupted"):
        waiting = waiting_now(reader, run) or pending(run.run_id, storage=manager)
    return RunOutcome(
        run_id=run.run_id,
        name=run.name,
        door=run.door,
        status=status_of_run(storage, run),
        step=run.step,
        over=is_over(storage, run),
        value=value,
        state=state,
        error=error,
        waiting=[msgspec.structs.replace(one, question=raw(one.question)) for one in waiting],
        started_at=run.started_at,
        saved_at=run.saved_at,
    )
