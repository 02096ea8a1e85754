"""`surehold tree`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.views.forks import TreeRun, read_tree


@ui.command
def tree(
    cli: ui.Cli,
    run: Annotated[str | None, ui.Argument(help="Only this run's family.")] = None,
    limit: ui.Limit = 100,
) -> None:
    """Show runs with their forks and the runs they began below them."""
    run_id = None if run is None else cli.finder.run(run).run_id
    document = read_tree(cli.manager, run_id, limit=limit)
    cli.give(document, lambda: _lines(document.runs))


def _lines(rows: list[TreeRun]) -> Iterator[object]:
    for at, row in enumerate(rows):
        stem = ""
        if row.depth:
            inner = range(1, row.depth)
            stem = "".join("│  " if _has_next(rows, at, depth) else "   " for depth in inner)
            stem += "├─ " if _has_next(rows, at, row.depth) else "└─ "
        origin = row.forked_from
        yield ui.Line.of(
            ui.Cell(stem, "dim"),
            ui.Cell(row.run_id, "bold"),
            ui.Cell(f" {row.name}" if row.name else "", "dim"),
            " ",
            ui.status_cell(row.status),
            f" at step {row.step}",
            ui.Cell(f", from step {origin.step}" if origin else "", "dim"),
            ui.Cell(", begun by it" if row.begun_by else "", "dim"),
        )


def _has_next(rows: list[TreeRun], at: int, depth: int) -> bool:
    """True if another row of that depth follows before a shallower one."""
    for row in rows[at + 1 :]:
        if row.depth <= depth:
            return row.depth == depth
    return False
