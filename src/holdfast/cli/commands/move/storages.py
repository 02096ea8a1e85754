"""`holdfast copy` and `holdfast migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from holdfast.cli.commands.keep import chosen_runs
from holdfast.cli.commands.move.documents import Copied, CopyRow, Migrate, MigrateRow
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    DryRun,
    Line,
    Option,
    Table,
    command,
    exits,
    import_from_here,
)
from holdfast.errors import ConflictError, CorruptError, UsageError
from holdfast.storage.addresses import mask_url

__all__ = ["copy", "migrate"]

_Runs = Annotated[list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")]


@command
def copy(
    cli: Cli,
    runs: _Runs = None,
    to: Annotated[str, Option(metavar="URL", help="The other storage.")] = "",
) -> int:
    """Bring the copies of runs in another storage up to date.

    What is there already is not copied again, so that it can be called often, and again after it
    was interrupted. Runs of which the copy went its own way are told of, and exit with 3.
    """
    from holdfast.storage.registry import open_storage

    if not to:
        raise UsageError("there is nowhere to copy to", hint="give --to URL")
    chosen = chosen_runs(cli, runs or [])
    rows: list[CopyRow] = []
    with open_storage(to) as target, cli.progress("copying", len(chosen)) as advance:
        for run in reversed(chosen):  # oldest first, so that the copy lists them in their order
            try:
                records = cli.manager.copy_run(run.run_id, target)
                rows.append(CopyRow(run_id=run.run_id, records=records))
            except (ConflictError, CorruptError) as error:
                rows.append(CopyRow(run_id=run.run_id, records=0, error=str(error)))
            advance()
    document = Copied(to=mask_url(to), records=sum(row.records for row in rows), runs=rows)
    cli.give(document, lambda: _copied(document))
    return exits.PARTIAL if any(row.error for row in rows) else 0


def _copied(document: Copied) -> Iterator[object]:
    new = [row for row in document.runs if row.records or row.error]
    if new:
        columns = (Column("run", gives=True), Column("records", right=True), Column("", gives=True))
        yield Table(
            columns, [[Cell(r.run_id, "bold"), r.records, Cell(r.error, "red")] for r in new]
        )
    same = len(document.runs) - len(new)
    told = f", {same} runs were up to date" if same else ""
    yield Line.of(f"{document.records} records copied to {document.to}{told}")


@command
def migrate(
    cli: Cli,
    runs: _Runs = None,
    module: Annotated[
        list[str] | None,
        Option("--import", metavar="MODULE", help="Import it: it registers migrations."),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Save the newest state of runs in the newest version that your migrations lead to.

    A run is upgraded whenever it is loaded, so this is not needed to go on with one. With --dry-run
    it tells which runs nothing leads on for. Those exit with 8.
    """
    import importlib

    from holdfast.checkpoint.inspect import migrate_run

    import_from_here()
    for name in module or []:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"{name} cannot be imported: {error}") from error
    chosen = chosen_runs(cli, runs or [])
    rows: list[MigrateRow] = []
    with cli.progress("migrating", len(chosen)) as advance:
        for run in chosen:
            done = migrate_run(cli.manager, run, dry_run=dry_run)
            rows.append(MigrateRow(**msgspec.structs.asdict(done)))
            advance()
    document = Migrate(dry_run=dry_run, runs=rows)
    cli.give(document, lambda: _migrated(document))
    return 8 if any(row.outcome == "stuck" for row in rows) else 0


def _migrated(document: Migrate) -> Iterator[object]:
    told = [row for row in document.runs if row.outcome != "current"]
    if told:
        columns = (
            Column("run", gives=True),
            Column("version"),
            Column("what"),
            Column("problem", gives=True),
        )
        rows = [
            [
                Cell(row.run_id, "bold"),
                f"{row.found} -> {row.wanted}",
                Cell(row.outcome, "red" if row.outcome == "stuck" else "green"),
                row.problem,
            ]
            for row in told
        ]
        yield Table(columns, rows)
    current = len(document.runs) - len(told)
    yield Line.of(f"{current} of {len(document.runs)} runs are of the newest version")
