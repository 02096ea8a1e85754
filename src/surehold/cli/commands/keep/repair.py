"""`surehold repair`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.engine.repair import RunRepair
from surehold.errors import DataError


class Repair(ui.Document, kw_only=True, tag="repair"):
    dry_run: bool
    clean: bool
    medium: tuple[str, ...]
    runs: tuple[RunRepair, ...]


@ui.command
def repair(
    cli: ui.Cli,
    run: Annotated[str | None, ui.Argument(help="Only this run; else all.")] = None,
    dry_run: ui.DryRun = False,
    yes: ui.Yes = False,
) -> None:
    """Set damaged records aside so that the rest of a run can be used; guess nothing.

    What was set aside is kept, and a note in the run records it.
    """
    run_id = None if run is None else _run_id(cli, run)
    report = cli.manager.repair(run_id, dry_run=True)
    if not report.clean and not dry_run:
        if cli.for_people:
            cli.terminal.show([str(report)])
        cli.confirm("that would be done", yes=yes)
        report = cli.manager.repair(run_id)
    document = Repair(dry_run=dry_run, clean=report.clean, medium=report.medium, runs=report.runs)
    cli.give(document, lambda: [str(report)])


def _run_id(cli: ui.Cli, text: str) -> str:
    """The run's id; if damage prevents looking it up, *text* itself."""
    try:
        return cli.finder.run(text).run_id
    except DataError:
        return text
