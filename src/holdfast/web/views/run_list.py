"""Pages of runs, read by keyset so that a page costs the same in a large storage."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.checkpoint.inspect import RunSummary, runs_with_status, status_of_run, summaries
from holdfast.checkpoint.manager import CheckpointManager
from holdfast.core.records import read_status
from holdfast.storage.base import RecordQuery, RunInfo, RunQuery

PER_PAGE = 25
_EXAMINED = 500
"""Runs that one page of a search looks at."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that are wanted, as the address of a page states them."""

    name: str = ""
    status: str = ""
    search: str = ""
    before: int | None = None


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs, newest first."""

    runs: list[RunSummary]
    next: int | None
    """The `before` of the next page; None on the last one."""
    examined: int | None = None
    """The number of runs looked at, if the search stopped before the end."""


def read_runs(manager: CheckpointManager, wanted: Filter, limit: int = PER_PAGE) -> RunPage:
    """The runs that match, with the place where the next page begins."""
    status = read_status(wanted.status) if wanted.status else None
    query = RunQuery(
        name=wanted.name or None,
        before=wanted.before,
        limit=None if wanted.search or status else limit + 1,
    )
    found: list[RunInfo] = []
    last = 0
    for examined, run in enumerate(runs_with_status(manager.storage, query, status)):
        if len(found) == limit:
            return _page(manager, found, last)
        if examined == _EXAMINED:
            return _page(manager, found, last, examined)
        last = run.ordinal
        if _matches(manager, run, status, wanted.search.lower()):
            found.append(run)
    return _page(manager, found, None)


def _page(
    manager: CheckpointManager, found: list[RunInfo], next: int | None, examined: int | None = None
) -> RunPage:
    made = summaries(manager.retention, manager.storage, found)
    return RunPage(runs=made, next=next, examined=examined)


def _matches(manager: CheckpointManager, run: RunInfo, status: str | None, text: str) -> bool:
    if status is not None and status_of_run(manager.storage, run) != status:
        return False
    return not text or any(text in one.lower() for one in _texts(manager, run))


def _texts(manager: CheckpointManager, run: RunInfo) -> Iterator[str]:
    """The texts of a run that a search looks at: those of `holdfast runs --search`."""
    yield from (run.run_id, run.name, run.node or "")
    query = RecordQuery(run_id=run.run_id, scope="", limit=1)
    for newest in manager.storage.headers(query):
        yield from manager.retention.with_tags(newest).tags
        yield msgspec.json.encode(newest.metadata).decode()
