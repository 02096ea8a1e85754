"""One run for its page: a window of steps with the chosen one."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import NoteView
from surehold.engine.runs.messages import attributes_of, status_of
from surehold.errors import NotFoundError
from surehold.storage.base import RecordQuery, RunInfo
from surehold.views.forks import children_of, fork_origins
from surehold.views.run.calls import CALL_DOORS, window, with_calls
from surehold.views.runs import RunSummary, did_you_mean, runs_near, summaries
from surehold.views.timeline import TimelineEntry, entries_from, record_after, with_settled

WINDOW = 50
_NEWER = 6
"""Steps newer than the chosen one that a window begins with, if each has one note."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A window of a run's steps, newest first, with one of them chosen."""

    run: RunInfo
    summary: RunSummary
    entries: list[TimelineEntry]
    chosen: TimelineEntry
    place: Header
    """The newest checkpoint up to the chosen step, whose state is shown."""
    calls: list[NoteView]
    """The calls up to the chosen one, where calls are steps, the oldest first."""
    after: tuple[NoteView, ...]
    """Notes after the newest checkpoint."""
    newer: int | None
    """The record to choose for the window of newer steps."""
    older: int | None
    forks: dict[str, list[str]]
    """The runs that were forked from a checkpoint, by its id."""
    follows: bool
    """True if no step was asked for: the page shows the newest."""
    parent: str
    """The run that this one is inside of, if any."""
    children: list[str]
    """The runs of agents inside this one, the newest first."""
    published: dict[str, Any]
    """The values that the run has published, and its attributes."""


def run_of(manager: CheckpointManager, run_id: str) -> RunInfo:
    """The run with that id, or a `NotFoundError`."""
    run = manager.reader.run(run_id)
    if run is None:
        near = runs_near(manager.storage, run_id)
        hint = did_you_mean(near, "see the list of runs")
        raise NotFoundError(f"there is no run {run_id!r}", hint=hint, run_id=run_id, near=near)
    return run


def read_run(
    manager: CheckpointManager, run_id: str, *, at: int | None, step: int | None, nested: bool
) -> RunView:
    """A run with the checkpoint at record *at*, of *step*, or the newest chosen."""
    run = run_of(manager, run_id)
    scope = None if nested else ""
    if at is None and step is not None:
        at = _record_of_step(manager, run, step, scope, calls=run.door in CALL_DOORS)
    of_calls = run.door in CALL_DOORS and not nested
    is_newest_window = at is None or run.seq - at < WINDOW or of_calls
    start = None if is_newest_window else record_after(manager, run, (at or 0) + 2 * _NEWER)
    query = RecordQuery(run_id=run_id, scope=scope, before=start, limit=WINDOW + 1)
    headers = manager.reader.readable_headers(run, query)
    if not headers:
        raise NotFoundError(f"run {run_id!r} has no checkpoint", run_id=run_id)
    older = headers.pop().seq if len(headers) > WINDOW else None
    last = run.seq if start is None else headers[0].seq
    upto = msgspec.structs.replace(run, seq=last)
    first = (older or 0) + 1
    entries, after = entries_from(manager.reader, manager.retention, upto, first, headers)
    summary = summaries(manager.retention, manager.storage, [run])[0]
    settled: set[tuple[str, str]] = set()
    after = with_settled(after, settled, running=summary.status == "running")
    shown = [
        msgspec.structs.replace(one, notes=with_settled(one.notes, settled))
        for one in reversed(entries)
    ]
    left, past = None, shown
    if of_calls:
        past, after = with_calls(manager, run, shown, after)
        shown, left, older = window(past, at, WINDOW, _NEWER)
    chosen = shown[0] if at is None else next((m for m in shown if m.header.seq <= at), shown[-1])
    past = [one for one in past if one.header.seq <= chosen.header.seq]
    parent = headers[0].metadata.get("parent_run")
    return RunView(
        run=run,
        summary=summary,
        entries=shown,
        chosen=chosen,
        after=after if start is None else (),
        place=next((m.header for m in past if m.header.frame != "note"), headers[-1]),
        calls=[note for m in reversed(past) if m.header.frame == "note" for note in m.notes],
        newer=left if start is None else min(run.seq, headers[0].seq + WINDOW - _NEWER),
        older=older,
        forks=_forks(manager, run_id),
        follows=at is None,
        parent=parent if isinstance(parent, str) else "",
        published=attributes_of(run_id, storage=manager) | status_of(run_id, storage=manager),
        children=children_of(manager, run_id),
    )


def _forks(manager: CheckpointManager, run_id: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for fork, origin in fork_origins(manager.storage).items():
        if origin.run_id == run_id:
            found.setdefault(origin.checkpoint_id, []).append(fork)
    return found


def _record_of_step(
    manager: CheckpointManager, run: RunInfo, step: int, scope: str | None, *, calls: bool
) -> int:
    """The newest checkpoint or call of a step, or else the last one before it."""
    query = RecordQuery(run_id=run.run_id, scope=scope, notes=calls)
    for header in manager.storage.headers(query):
        if header.step <= step and (header.frame != "note" or header.kind == "effect"):
            return header.seq
    raise NotFoundError(f"run {run.run_id!r} has nothing at step {step}", run_id=run.run_id)
