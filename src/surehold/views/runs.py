"""Lists of runs: status, cost and origin of each, filtered, sorted or in pages.

All of it comes from heads and headers, so that no state is loaded and no key is needed. A page is
read by keyset, so that it costs the same in a large storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from difflib import get_close_matches
from itertools import chain, islice
from threading import Lock
from typing import Annotated, Any

import msgspec

from surehold.core.records import read_status
from surehold.engine.managers import CheckpointManager
from surehold.engine.retention import RetentionManager
from surehold.engine.runs import SHOWN_STATUSES, at_its_step, runs_with_status, status_of_run
from surehold.engine.runs.messages import run_ids_where
from surehold.errors import SureholdError, UsageError
from surehold.storage.addresses import nearest
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, Storage
from surehold.storage.queueing import queues_in
from surehold.views.costs import spent
from surehold.views.documents import Document, Rows
from surehold.views.forks import Origin, fork_origins
from surehold.views.timeline import failure_of

PER_PAGE = 25
_EXAMINED = 150
"""Runs that one page of a search looks at."""
_RUNS_KNOWN = 2000
_NEAR = 500
"""Newest runs among which one with a similar id is looked for."""
_MOST_BY_ID = 10
_MOST_CHARACTERS = 4000
"""Longer texts of runs are not kept."""
_OF_RUN = ("run_id", "name", "door", "step", "node", "checkpoints", "started_at", "saved_at")
"""Facts that a summary takes from the head of its run."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a list shows it."""

    run_id: str
    name: str
    door: str
    """What executes it; empty if its journal does not name it."""
    status: str
    """Its status; see `status_of_run`."""
    step: int
    node: str | None
    checkpoints: int
    stored_bytes: int
    started_at: datetime
    saved_at: datetime
    tokens: int
    dollars: float
    forks: int
    forked_from: Origin | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]


def summaries(
    retention: RetentionManager, storage: Storage, runs: Iterable[RunInfo]
) -> list[RunSummary]:
    """These runs, each with its facts."""
    chosen = [at_its_step(storage, run) for run in runs]
    origins = fork_origins(storage)
    forks = Counter(origin.run_id for origin in origins.values())
    made = []
    for run in chosen:
        newest = next(
            iter(storage.headers(RecordQuery(run_id=run.run_id, scope="", limit=1))), None
        )
        cost = spent(storage, run.run_id)
        made.append(
            RunSummary(
                **{name: getattr(run, name) for name in _OF_RUN},
                status=status_of_run(storage, run),
                stored_bytes=run.stored,
                tokens=cost.tokens,
                dollars=cost.dollars,
                forks=forks[run.run_id],
                forked_from=origins.get(run.run_id),
                tags=retention.with_tags(newest).tags if newest else (),
                metadata=dict(newest.metadata) if newest else {},
            )
        )
    return made


SORTS: dict[str, Callable[[RunSummary], Any]] = {
    "began": lambda run: run.started_at,
    "saved": lambda run: run.saved_at,
    "steps": lambda run: run.step,
    "size": lambda run: run.stored_bytes,
    "cost": lambda run: run.dollars,
    "name": lambda run: (run.name, run.run_id),
}
"""The facts by which a list is sorted."""


class RunList(Document, kw_only=True, tag="runs"):
    runs: Annotated[list[RunSummary], Rows("run")]
    more: bool
    """True if there are more than were asked for."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that are wanted."""

    name: str = ""
    status: str = ""
    search: str = ""
    where: dict[str, Any] = {}
    """Attributes that it has, or metadata that one of its checkpoints has."""
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


def list_runs(
    manager: CheckpointManager, wanted: Filter, *, sort: str | None, limit: int | None
) -> RunList:
    """The runs that match, sorted."""
    if sort is not None and sort not in SORTS:
        raise UsageError(f"runs cannot be sorted by {sort!r}", hint=f"by {', '.join(SORTS)}")
    texts = SearchTexts(manager)
    found: Iterator[RunInfo] = (
        run for run, matches in _examined(manager, texts, wanted) if matches
    )
    if sort is None and limit is not None:
        found = islice(found, limit + 1)
    chosen = summaries(manager.retention, manager.storage, found)
    if sort is not None:
        chosen.sort(key=SORTS[sort], reverse=sort != "name")
    return RunList(runs=chosen[:limit], more=limit is not None and len(chosen) > limit)


def read_runs(
    manager: CheckpointManager, texts: SearchTexts, wanted: Filter, limit: int = PER_PAGE
) -> RunPage:
    """The runs that match, with the place where the next page begins."""
    found: list[RunInfo] = []
    if wanted.search and wanted.before is None:
        found = _with_id(manager, wanted)
    known = {run.run_id for run in found}
    last = 0
    most = (_EXAMINED if wanted.search or wanted.status else limit) + 1
    for examined, (run, matches) in enumerate(_examined(manager, texts, wanted, most)):
        if len(found) == limit:
            return _page(manager, found, last)
        if examined == _EXAMINED:
            return _page(manager, found, last, examined)
        last = run.ordinal
        found += [run] if matches and run.run_id not in known else []
    return _page(manager, found, None)


def _with_id(manager: CheckpointManager, wanted: Filter) -> list[RunInfo]:
    """The run whose id is searched, however old it is, or else those that begin so.

    An exact id is found in any storage; a beginning among the newest 2,000 runs.
    """
    status = read_shown_status(manager, wanted.status) if wanted.status else None
    exact = manager.reader.run(wanted.search)
    found = [exact] if exact is not None else []
    if exact is None:
        every = islice(manager.storage.runs(RunQuery(name=wanted.name or None)), _RUNS_KNOWN)
        begun = (run for run in every if run.run_id.startswith(wanted.search))
        found = list(islice(begun, _MOST_BY_ID))
    return [
        run
        for run in found
        if wanted.name in ("", run.name) and status in (None, status_of_run(manager.storage, run))
    ]


def errors_of(manager: CheckpointManager, runs: Iterable[RunSummary | RunInfo]) -> dict[str, str]:
    """The errors that the failed and dead ones among these runs ended with."""
    errors: dict[str, str] = {}
    queues = queues_in(manager.storage)
    for run in runs:
        entry = queues.entry_of(run.run_id) if queues and run.status == "dead" else None
        if entry is not None:
            errors[run.run_id] = entry.reason
        query = RecordQuery(run_id=run.run_id, scope="", limit=1)
        for newest in manager.storage.headers(query) if run.status == "failed" else ():
            records = manager.storage.read(run.run_id, first=newest.seq, last=newest.seq)
            try:
                for record in records:
                    errors[run.run_id] = failure_of(manager.reader, record)[0]
            except SureholdError:
                continue
    return errors


def _page(
    manager: CheckpointManager, found: list[RunInfo], next: int | None, examined: int | None = None
) -> RunPage:
    made = summaries(manager.retention, manager.storage, found)
    return RunPage(runs=made, next=next, examined=examined)


def _examined(
    manager: CheckpointManager, texts: SearchTexts, wanted: Filter, most: int | None = None
) -> Iterator[tuple[RunInfo, bool]]:
    """The runs that may match, newest first, each with whether it does."""
    status = read_shown_status(manager, wanted.status) if wanted.status else None
    search = wanted.search.lower()
    for run in _stored(manager.storage, wanted, status, most):
        matches = not search or search in texts.of(run)
        yield run, matches and status in (None, status_of_run(manager.storage, run))


def _stored(
    storage: Storage, wanted: Filter, status: str | None, most: int | None
) -> Iterator[RunInfo]:
    query = RunQuery(name=wanted.name or None, before=wanted.before, limit=most)
    if not wanted.where:
        yield from runs_with_status(storage, query, status)
        return
    headers = storage.headers(RecordQuery(name=query.name, metadata=wanted.where))
    of_checkpoints = (header.run_id for header in headers)
    for run_id in dict.fromkeys(chain(of_checkpoints, run_ids_where(storage, wanted.where))):
        one = msgspec.structs.replace(query, run_id=run_id)
        yield from runs_with_status(storage, one, status)


def read_shown_status(manager: CheckpointManager, text: str) -> str:
    """The status that *text* names; a `UsageError` if no run can have it."""
    status = read_status(text)
    stored = RunQuery(status=status, limit=1)
    if status not in SHOWN_STATUSES and not any(manager.storage.runs(stored)):
        raise UsageError(
            f"no run has the status {text!r}",
            hint=f"{nearest(text, SHOWN_STATUSES)}one of {', '.join(SHOWN_STATUSES)}",
        )
    return status


def runs_near(storage: Storage, text: str) -> list[str]:
    """Ids like *text*, or with it inside, among those of the newest runs."""
    known = [one.run_id for one in storage.runs(RunQuery(limit=_NEAR))]
    near = get_close_matches(text[:100], known, n=3)
    return near or [one for one in known if text and text in one][:3]


def did_you_mean(near: list[str], otherwise: str) -> str:
    """The hint that names near ids."""
    return f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise
