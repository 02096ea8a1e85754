"""`surehold migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.engine.runs import Migrated, migrate_run


class Migrate(ui.Document, kw_only=True, tag="migrate"):
    dry_run: bool
    runs: Annotated[list[Migrated], ui.Rows("migrated")]


@ui.command
def migrate(
    cli: ui.Cli,
    runs: ui.Runs = None,
    module: Annotated[
        list[str] | None,
        ui.Option("--import", metavar="MODULE", help="Import it: it registers migrations."),
    ] = None,
    dry_run: ui.DryRun = False,
) -> int:
    """Save the newest state of runs in the newest version of your migrations.

    Loading a run upgrades its state anyway, so a resume does not need this command. --dry-run
    lists the runs whose version has no migration. If there are any, the exit code is 8.
    """
    ui.import_modules(module or ())
    chosen = cli.finder.runs(runs)
    rows = [
        migrate_run(cli.manager, run, dry_run=dry_run)
        for run in cli.progress("migrating", chosen, len(chosen))
    ]
    document = Migrate(dry_run=dry_run, runs=rows)
    cli.give(document, lambda: _migrated(document))
    return 8 if any(row.outcome == "stuck" for row in rows) else 0


def _migrated(document: Migrate) -> Iterator[object]:
    other = [row for row in document.runs if row.outcome != "current"]
    styles = {"stuck": "red"}
    yield ui.Table.of(
        other,
        ui.Column("run", lambda row: ui.Cell(row.run_id, "bold"), gives=True),
        ui.Column("version", lambda row: f"{row.found} -> {row.wanted}"),
        ui.Column("what", lambda row: ui.Cell(row.outcome, styles.get(row.outcome, "green"))),
        ui.Column("problem", gives=True),
    )
    current = len(document.runs) - len(other)
    have = "has" if len(document.runs) == 1 else "have"
    runs = ui.counted(len(document.runs), "run")
    yield ui.Line.of(f"{current} of {runs} {have} the newest version")
