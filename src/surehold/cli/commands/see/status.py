"""`surehold status`."""

from __future__ import annotations

from collections.abc import Iterator

from surehold.cli import framework as ui
from surehold.views.health import Status, read_status


@ui.command
def status(cli: ui.Cli) -> int:
    """Report anything wrong: stale, failing, looping runs, failed saves, damage.

    Exits with 0 if nothing is wrong, 7 if something is damaged, else 1. Runs that failed, and saves
    that failed with only a warning, are those of the last day. A run loops if three resumes in a
    row ended without a save. A disk that is nearly full is reported as well. All runs are counted.
    Looked at, and checked for damage, are the newest 20 and up to 100 each that are held, stale,
    dead, failed, interrupted or waiting; `surehold verify` checks everything.
    """
    settings = cli.settings
    document = read_status(cli.manager, settings.storage.value, settings.graphs.value)
    cli.give(document, lambda: _text(document))
    if any(problem.kind == "damage" for problem in document.problems):
        return ui.exits.DAMAGED
    return 0 if document.healthy else ui.exits.FAILED


def _text(document: Status) -> Iterator[object]:
    word = (
        ui.Cell("healthy", "bold green") if document.healthy else ui.Cell("unhealthy", "bold red")
    )
    free = f", {ui.size(document.free_bytes)} free" if document.free_bytes is not None else ""
    yield ui.Line.of(word, ui.Cell(f"  {document.storage}{free}", "dim"))
    cells: list[object] = []
    for name, count in document.runs.items():
        cells += [f"{count:,} ", ui.status_cell(name), "  "]
    yield ui.Line.of(*cells) if cells else "no runs"
    if document.pending:
        yield ui.Line.of(
            ui.Cell(f"{document.pending:,} waiting for a person", "cyan"),
            ui.Cell(" (surehold pending)", "dim"),
        )
    yield ui.Table.of(
        document.problems,
        ui.Column("problem", lambda one: ui.Cell(one.kind, "red")),
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=2),
        ui.Column("what helps", lambda one: one.help, gives=True, rank=1),
        ui.Column("what", lambda one: one.message, gives=True, enough=30),
    )
