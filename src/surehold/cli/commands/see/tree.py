"""`surehold tree`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.cli.commands.see.graph_log import family_of
from surehold.engine.inspect import Origin, fork_origins, status_of_run
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RunInfo, RunQuery


class TreeRun(msgspec.Struct, kw_only=True):
    """A run in its place among the forks."""

    run_id: str
    name: str
    status: str
    step: int
    depth: int
    forked_from: Origin | None


class Tree(ui.Document, kw_only=True, tag="tree"):
    """``tree``"""

    runs: Annotated[list[TreeRun], ui.Rows("run")]


@ui.command
def tree(
    cli: ui.Cli,
    run: Annotated[str | None, ui.Argument(help="Only this run's family.")] = None,
    limit: ui.Limit = 100,
) -> None:
    """Show runs with their forks below them."""
    run_id = None if run is None else cli.finder.run(run).run_id
    document = read_tree(cli.manager, run_id, limit=limit)
    cli.give(document, lambda: _lines(document.runs))


def read_tree(manager: CheckpointManager, run_id: str | None = None, *, limit: int = 100) -> Tree:
    """The newest runs, or the family of one, each followed by its forks."""
    origins, find = fork_origins(manager.storage), manager.reader.run
    if run_id is not None:
        members = map(find, family_of(manager, run_id))
        roots = [next(member for member in members if member is not None)]
    else:
        every = manager.storage.runs(RunQuery())
        roots = list(islice((run for run in every if _is_root(run, origins, manager)), limit))
    return Tree(runs=list(_rows(manager, roots, origins, 0)))


def _is_root(run: RunInfo, origins: dict[str, Origin], manager: CheckpointManager) -> bool:
    """True if the run is no fork, or a fork of a run that was deleted."""
    origin = origins.get(run.run_id)
    return origin is None or manager.reader.run(origin.run_id) is None


def _rows(
    manager: CheckpointManager, runs: list[RunInfo], origins: dict[str, Origin], depth: int
) -> Iterator[TreeRun]:
    for run in runs:
        yield TreeRun(
            run_id=run.run_id,
            name=run.name,
            status=status_of_run(manager.storage, run),
            step=run.step,
            depth=depth,
            forked_from=origins.get(run.run_id) if depth else None,
        )
        forks = (fork for fork, origin in origins.items() if origin.run_id == run.run_id)
        found = [one for one in map(manager.reader.run, forks) if one is not None]
        yield from _rows(manager, sorted(found, key=lambda one: one.ordinal), origins, depth + 1)


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
        )


def _has_next(rows: list[TreeRun], at: int, depth: int) -> bool:
    """True if another row of that depth follows before a shallower one."""
    for row in rows[at + 1 :]:
        if row.depth <= depth:
            return row.depth == depth
    return False
