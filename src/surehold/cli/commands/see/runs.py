"""`surehold runs`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.core.records import read_status
from surehold.engine.inspect import SHOWN_STATUSES, RunSummary, runs_with_status, summaries
from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.storage.addresses import nearest
from surehold.storage.base import RecordQuery, RunInfo, RunQuery

_SHOWN = 20
_SORTS: dict[str, Callable[[RunSummary], Any]] = {
    "began": lambda run: run.started_at,
    "saved": lambda run: run.saved_at,
    "steps": lambda run: run.step,
    "size": lambda run: run.stored_bytes,
    "cost": lambda run: run.dollars,
    "name": lambda run: (run.name, run.run_id),
}


class RunList(ui.Document, kw_only=True, tag="runs"):
    """``runs``"""

    runs: Annotated[list[RunSummary], ui.Rows("run")]
    more: bool
    """True if there are more than were asked for."""


@ui.command
def runs(
    cli: ui.Cli,
    name: Annotated[str | None, ui.Argument(help="Only runs of this name.")] = None,
    status: Annotated[
        str | None, ui.Option(help="Only runs with this status; queued, stale, ... too.")
    ] = None,
    search: Annotated[
        str | None, ui.Option(help="Text in id, name, node, tags or metadata.")
    ] = None,
    where: Annotated[
        list[str] | None,
        ui.Option(metavar="KEY=VALUE", help="Metadata that one of its checkpoints has."),
    ] = None,
    sort: Annotated[
        str | None, ui.Option(help=f"{', '.join(_SORTS)}; newest or most first.")
    ] = None,
    limit: ui.Limit = _SHOWN,
    all: ui.All = False,
) -> None:
    """List the runs, the one that began last first.

    A running run whose process is gone is shown as stale, one that no worker has taken yet as
    queued.
    """
    document = list_runs(
        cli.manager,
        name,
        status=status,
        search=search,
        where=ui.read_pairs("--where", where or ()),
        sort=sort,
        limit=None if all else limit,
    )
    cli.give(document, lambda: _table(document.runs))
    if not cli.for_people:
        return
    if document.more:
        cli.say(ui.Cell("there are more: -n, --all, --search and --sort choose", "dim"))
    if not document.runs and (name or status or search or where):
        cli.say("no run matches", ui.Cell(" (surehold runs lists all)", "dim"))
    elif not document.runs:
        cli.say(f"no runs in {cli.address}", ui.Cell(" (surehold demo makes some)", "dim"))


def list_runs(
    manager: CheckpointManager,
    name: str | None,
    *,
    status: str | None,
    search: str | None,
    where: dict[str, Any],
    sort: str | None,
    limit: int | None,
) -> RunList:
    """The runs that match, sorted."""
    if sort is not None and sort not in _SORTS:
        raise UsageError(f"runs cannot be sorted by {sort!r}", hint=f"by {', '.join(_SORTS)}")
    wanted = None if status is None else read_shown_status(manager, status)
    found: Iterable[RunInfo] = _found(manager, name, wanted, where)
    if sort is None and search is None and status is None and limit is not None:
        found = islice(found, limit + 1)
    chosen = summaries(manager.retention, manager.storage, found)
    chosen = [run for run in chosen if wanted in (None, run.status) and _matches(run, search)]
    if sort is not None:
        chosen.sort(key=_SORTS[sort], reverse=sort != "name")
    return RunList(runs=chosen[:limit], more=limit is not None and len(chosen) > limit)


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


def _found(
    manager: CheckpointManager, name: str | None, status: str | None, where: dict[str, Any]
) -> Iterator[RunInfo]:
    storage = manager.storage
    query = RunQuery(name=name)
    if not where:
        return runs_with_status(storage, query, status)
    headers = storage.headers(RecordQuery(name=name, metadata=where))
    return (
        run
        for run_id in dict.fromkeys(header.run_id for header in headers)
        for run in runs_with_status(storage, msgspec.structs.replace(query, run_id=run_id), status)
    )


def _matches(run: RunSummary, search: str | None) -> bool:
    if search is None:
        return True
    metadata = msgspec.json.encode(run.metadata).decode()
    texts = (run.run_id, run.name, run.node or "", *run.tags, metadata)
    return any(search.lower() in text.lower() for text in texts)


def _table(shown: list[RunSummary]) -> Iterator[object]:
    yield ui.Table.of(
        shown,
        ui.Column("run", lambda run: ui.Cell(run.run_id, "bold"), gives=True, rank=6),
        ui.Column("name", _name, gives=True, rank=1),
        ui.Column("status", lambda run: ui.status_cell(run.status)),
        ui.Column("steps", lambda run: run.step, right=True),
        ui.Column("last checkpoint", _last_checkpoint, gives=True, rank=3),
        ui.Column("size", lambda run: ui.size(run.stored_bytes), right=True, gives=True, rank=4),
        ui.Column("cost", lambda run: ui.money(run.dollars), right=True, gives=True, rank=5),
        ui.Column("forks", lambda run: run.forks or "", right=True, gives=True, rank=2),
    )
    total = sum(run.dollars for run in shown)
    if total:
        yield ui.Line.of(ui.Cell(f"{ui.counted(len(shown), 'run')}, {ui.money(total)}", "dim"))


def _name(run: RunSummary) -> str:
    origin = run.forked_from
    return f"{run.name} {f'(fork of {origin.run_id}@{origin.step})' if origin else ''}".strip()


def _last_checkpoint(run: RunSummary) -> ui.Cell:
    return ui.Cell(ui.ago(run.saved_at) + (f" {run.node}" if run.node else ""), "dim")
