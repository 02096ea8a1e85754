"""Pages of runs, read by keyset so that a page costs the same in a large storage."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import msgspec

from surehold.cli.commands.see import read_shown_status
from surehold.engine.inspect import (
    STORED_AS_RUNNING,
    RunSummary,
    runs_with_status,
    status_of_run,
    summaries,
)
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RecordQuery, RunInfo, RunQuery

PER_PAGE = 25
_EXAMINED = 150
"""Runs that one page of a search looks at."""
_RUNS_KNOWN = 2000
_MOST_CHARACTERS = 4000
"""Longer texts of runs are not kept."""


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


class SearchTexts:
    """The texts that a search looks at, those of `surehold runs --search`; bounded."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._known: dict[str, tuple[int, int, str]] = {}
        self._lock = Lock()

    def of(self, run: RunInfo) -> str:
        """The text of a run, in lower case; read again only if the run has a new record."""
        ordinal, seq, text = self._known.get(run.run_id, (0, 0, ""))
        if (ordinal, seq) == (run.ordinal, run.seq):
            return text
        text = "\n".join(self._read(run)).lower()
        if len(text) <= _MOST_CHARACTERS:
            with self._lock:
                self._known[run.run_id] = run.ordinal, run.seq, text
                if len(self._known) > _RUNS_KNOWN:
                    del self._known[next(iter(self._known))]
        return text

    def _read(self, run: RunInfo) -> Iterator[str]:
        yield from (run.run_id, run.name, run.node or "")
        query = RecordQuery(run_id=run.run_id, scope="", limit=1)
        for newest in self._manager.storage.headers(query):
            yield from self._manager.retention.with_tags(newest).tags
            yield msgspec.json.encode(newest.metadata).decode()


def read_runs(
    manager: CheckpointManager, texts: SearchTexts, wanted: Filter, limit: int = PER_PAGE
) -> RunPage:
    """The runs that match, with the place where the next page begins."""
    status = read_shown_status(manager, wanted.status) if wanted.status else None
    query = RunQuery(
        name=wanted.name or None,
        before=wanted.before,
        limit=(_EXAMINED if wanted.search or status else limit) + 1,
    )
    found: list[RunInfo] = []
    last = 0
    for examined, run in enumerate(runs_with_status(manager.storage, query, status)):
        if len(found) == limit:
            return _page(manager, found, last)
        if examined == _EXAMINED:
            return _page(manager, found, last, examined)
        last = run.ordinal
        if wanted.search and wanted.search.lower() not in texts.of(run):
            continue
        if status not in STORED_AS_RUNNING or status_of_run(manager.storage, run) == status:
            found.append(run)
    return _page(manager, found, None)


def _page(
    manager: CheckpointManager, found: list[RunInfo], next: int | None, examined: int | None = None
) -> RunPage:
    made = summaries(manager.retention, manager.storage, found)
    return RunPage(runs=made, next=next, examined=examined)
