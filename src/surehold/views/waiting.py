"""Waiting runs: their questions, events and times, and what continues them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from surehold.core.records import MANAGER, Header
from surehold.doors.resume import ResumePlan
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import Waiting, waiting_now
from surehold.errors import SureholdError
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage
from surehold.storage.queueing import queues_in
from surehold.views.documents import Document, Rows, raw
from surehold.views.runs import RunSummary

_MOST = 50
"""Questions, effects, events and timers of one page; those of one run stay together."""
_STOPPED = ("waiting", "failed", "interrupted", "stale", "stalled", "budget_exhausted")
_LANGGRAPH = "graph.invoke(None, config) resumes the thread"


class Pending(Document, kw_only=True, tag="pending"):
    pending: Annotated[list[Waiting], Rows("waiting")]

    @classmethod
    def of(cls, found: list[Waiting]) -> Pending:
        """The document of these, each question as the journal writes it."""
        told = (msgspec.structs.replace(one, question=raw(one.question)) for one in found)
        return cls(pending=[*told])


class WaitingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Questions, effects in doubt, events and times, of the newest runs first."""

    found: list[Waiting]
    runs: dict[str, RunInfo]
    damaged: list[str]
    """The runs that cannot be read."""
    next: int | None
    """The `before` of the next page; None on the last one."""


def read_waiting(manager: CheckpointManager, before: int | None) -> WaitingPage:
    """List what runs wait for, beginning with those older than *before*."""
    found: list[Waiting] = []
    damaged: list[str] = []
    runs: dict[str, RunInfo] = {}
    last, more = before, False
    for run in manager.storage.runs(RunQuery(open=True, before=before)):
        if more := len(found) >= _MOST:
            break
        last = run.ordinal
        runs[run.run_id] = run
        try:
            found += waiting_now(manager.reader, run)
        except SureholdError:
            damaged.append(run.run_id)
    return WaitingPage(found=found, runs=runs, damaged=damaged, next=last if more else None)


def recorded_entry(manager: CheckpointManager, run: RunInfo) -> str | None:
    """The ``module:name`` that the run recorded; "" for a framework's, None for none."""
    newest = manager.reader.newest(run)
    door = manager.reader.door(newest) if newest is not None else MANAGER
    return "" if door.kind == "thread" else door.entry_point or None


def helped_by(
    manager: CheckpointManager, runs: Iterable[RunSummary], graphs: Mapping[str, str]
) -> dict[str, Literal["answer", "requeue", "resume"]]:
    """The action that helps each run that has stopped, if the page has one."""
    found: dict[str, Literal["answer", "requeue", "resume"]] = {}
    for one in runs:
        run = manager.reader.run(one.run_id) if one.status in _STOPPED else None
        if one.status == "dead":
            found[one.run_id] = "requeue"
        elif run is not None and (run.open or one.status == "waiting"):
            found[one.run_id] = "answer"
        elif run and how_to_resume(manager, run, graphs).startswith("surehold resume "):
            found[one.run_id] = "resume"
    return found


def how_to_resume(manager: CheckpointManager, run: RunInfo, graphs: Mapping[str, str]) -> str:
    """The command that resumes a run, or advice if the command line cannot resume it.

    *graphs* are the entry points that `surehold.toml` names.
    """
    queues = queues_in(manager.storage)
    queued = queues.entry_of(run.run_id) if queues is not None else None
    if queued is not None and queued.state == "dead":
        return f"surehold queue requeue {run.run_id}"
    try:
        entry = recorded_entry(manager, run) or graphs.get(run.name)
    except SureholdError:
        entry = None
    if entry:
        return f"surehold resume {run.run_id}"
    if run.door == "program":
        return _start_of(manager, run)
    return _LANGGRAPH if entry == "" else "start its program again"


def _start_of(manager: CheckpointManager, run: RunInfo) -> str:
    """The command that starts a recorded program again."""
    newest = manager.reader.newest(run)
    if newest is None:
        return "start its program again"
    texts = manager.reader.values(newest, ["command"])
    told = {key: msgspec.json.decode(text) for key, text in texts.items() if text}
    if not told.get("command"):
        return "start its program again"  # a block of `surehold.record`
    return shlex.join(["surehold", "exec", "--run", run.run_id, "--", *told["command"]])


def rewind_text(storage: Storage, plan: ResumePlan, earlier: Header, *, now: bool) -> str:
    """The meaning of resuming from a checkpoint that is not the newest."""
    run, step = f"run {plan.run_id}", earlier.step
    if earlier.status == "completed":
        none = "nothing runs" if now else "nothing would run"
        return f"{run} was completed at that checkpoint, of step {step}: {none}"
    origin = _common_ancestor(storage, plan.checkpoint_id, earlier)
    if origin is not None and origin.id == earlier.id:
        return (
            f"{run} {'is' if now else 'would be'} rewound from step {plan.step}"
            f" to step {step}; effects recorded since then are not repeated"
        )
    resumes = f"{run} {'resumes' if now else 'would resume'} from the checkpoint of step {step}"
    if origin is None:
        return f"{resumes}; effects recorded after it are not repeated"
    return (
        f"{resumes}, on a branch that the run had left; effects recorded after it on that branch"
        " are not repeated, those of the abandoned branch may be"
    )


def _common_ancestor(storage: Storage, newest: str, earlier: Header) -> Header | None:
    """The newest checkpoint on the run's path that is not after *earlier*.

    None if checkpoints between the two were dropped.
    """
    query = RecordQuery(run_id=earlier.run_id, scope="")
    kept = {header.id: header for header in storage.headers(query)}
    passed = kept.get(newest)
    while passed is not None and passed.seq > earlier.seq:
        passed = kept.get(passed.parent or "")
    return passed
