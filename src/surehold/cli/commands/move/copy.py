"""`surehold copy`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.errors import ConflictError, CorruptError, UsageError
from surehold.storage.addresses import mask_url
from surehold.storage.registry import open_storage


class CopyRow(msgspec.Struct, kw_only=True):
    """The records that were copied of a run."""

    run_id: str
    records: int
    error: str = ""


class Copied(ui.Document, kw_only=True, tag="copied"):
    """``copy``"""

    to: str
    records: int
    runs: Annotated[list[CopyRow], ui.Rows("copied")]


@ui.command
def copy(
    cli: ui.Cli,
    runs: ui.Runs = None,
    to: Annotated[str, ui.Option(metavar="URL", help="The other storage.")] = "",
) -> int:
    """Bring the copies of runs in another storage up to date.

    Only missing records are copied, so it can be called often, and again after an interruption.
    Runs whose copy has records of its own are reported, and the command exits with 3.
    """
    if not to:
        raise UsageError("there is nowhere to copy to", hint="give --to URL")
    chosen = cli.finder.runs(runs)
    rows: list[CopyRow] = []
    chosen.reverse()  # oldest first, so that the copy lists them in their order
    with open_storage(to) as target:
        for run in cli.progress("copying", chosen, len(chosen)):
            try:
                records = cli.manager.copy_run(run.run_id, target)
                rows.append(CopyRow(run_id=run.run_id, records=records))
            except (ConflictError, CorruptError) as error:
                rows.append(CopyRow(run_id=run.run_id, records=0, error=str(error)))
    document = Copied(to=mask_url(to), records=sum(row.records for row in rows), runs=rows)
    cli.give(document, lambda: _copied(document))
    return ui.exits.PARTIAL if any(row.error for row in rows) else 0


def _copied(document: Copied) -> Iterator[object]:
    new = [row for row in document.runs if row.records or row.error]
    yield ui.Table.of(
        new,
        ui.Column("run", lambda row: ui.Cell(row.run_id, "bold"), gives=True),
        ui.Column("records", right=True),
        ui.Column("", lambda row: ui.Cell(row.error, "red"), gives=True),
    )
    same = len(document.runs) - len(new)
    rest = f", {ui.counted(same, 'run')} up to date" if same else ""
    yield ui.Line.of(f"{ui.counted(document.records, 'record')} copied to {document.to}{rest}")
