"""`surehold runs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.views.runs import SORTS, Filter, RunSummary, list_runs

_SHOWN = 20


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
        ui.Option(
            metavar="KEY=VALUE",
            help="An attribute (KEY>=VALUE, too), or metadata.",
        ),
    ] = None,
    sort: Annotated[
        str | None, ui.Option(help=f"{', '.join(SORTS)}; newest or most first.")
    ] = None,
    limit: ui.Limit = _SHOWN,
    all: ui.All = False,
) -> None:
    """List the runs, the one that began last first.

    A running run whose process is gone is shown as stale, one that no worker has taken yet as
    queued.
    """
    wanted = Filter(
        name=name or "",
        status=status or "",
        search=search or "",
        where={
            key + "=" * key.endswith((">", "<")): value
            for key, value in ui.read_pairs("--where", where or ()).items()
        },
    )
    document = list_runs(cli.manager, wanted, sort=sort, limit=None if all else limit)
    cli.give(document, lambda: _table(document.runs))
    if not cli.for_people:
        return
    if document.more:
        cli.say(ui.Cell("there are more: -n, --all, --search and --sort choose", "dim"))
    if not document.runs and (name or status or search or where):
        cli.say("no run matches", ui.Cell(" (surehold runs lists all)", "dim"))
    elif not document.runs:
        cli.say(f"no runs in {cli.address}", ui.Cell(" (surehold demo makes some)", "dim"))


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
