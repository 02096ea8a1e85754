"""`holdfast watch` and `holdfast tree`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.commands.see.documents import Tree, TreeRun, Watch
from holdfast.cli.commands.see.log import checkpoint_row, error_cells, mark_words
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Line,
    Option,
    change_words,
    command,
    exits,
    status_cell,
    when,
)
from holdfast.errors import NotFoundError

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Moment, Origin
    from holdfast.storage.base import RunInfo

__all__ = ["tree", "watch"]

_ENDED = {
    "completed": 0,
    "interrupted": exits.PARKED,
    **dict.fromkeys(("max_rounds_reached", "max_cycles_reached", "budget_exhausted"), exits.LIMIT),
}


@command
def watch(
    cli: Cli,
    run: Annotated[str, Argument(metavar="RUN", help="The run.")] = "latest",
    interval: Annotated[float, Option(help="Seconds between two looks.", min=0.05, max=3600)] = 0.5,
    limit: Annotated[
        int, Option("-n", "--limit", help="Earlier checkpoints to begin with.", min=0)
    ] = 5,
) -> int:
    """Follow a run: print each checkpoint when it is saved, until the run ends.

    Exits with 0 when it is completed, 20 when it is parked, 1 when it failed or its process died.
    """
    from holdfast.checkpoint.inspect import standing, timeline

    manager = cli.manager
    found = cli.finder.run(run)
    moments, _ = timeline(manager.reader, manager.retention, found, limit=limit or 1)
    for moment in reversed(moments[:limit]):
        _emit(cli, moment)
    seen = found.seq
    while True:
        stands = standing(cli.storage, found)
        if stands != "running":
            cli.say(Cell(found.run_id, "bold"), " ", status_cell(stands), _advice(found, stands))
            return _ENDED.get(stands, exits.FAILED)
        time.sleep(interval)
        now = manager.reader.run(found.run_id)
        if now is None:
            raise NotFoundError(f"run {found.run_id!r} was deleted", run_id=found.run_id)
        if now.seq > seen:
            for moment in _since(cli, now, seen + 1):
                _emit(cli, moment)
            seen = now.seq
        found = now


def _since(cli: Cli, run: RunInfo, first: int) -> list[Moment]:
    from holdfast.checkpoint.inspect import moments_from
    from holdfast.storage.base import RecordQuery

    manager = cli.manager
    headers = []
    for header in cli.storage.headers(RecordQuery(run_id=run.run_id, scope="")):
        if header.seq < first:
            break
        headers.append(header)
    moments, _ = moments_from(manager.reader, manager.retention, run, first, headers)
    return moments


def _emit(cli: Cli, moment: Moment) -> None:
    header = moment.header
    marks = mark_words(header, moment.pinned)

    def text() -> Iterator[object]:
        yield Line.of(
            Cell(f"{header.step:>5}  ", "bold"),
            Cell(f"{when(header.saved_at)}  ", "dim"),
            f"{header.node or '':<14}",
            marks,
            "  " if marks.text else "",
            change_words(moment.changes, 40),
            *error_cells(moment),
        )

    cli.stream(Watch(checkpoint=checkpoint_row(moment)), text)


def _advice(run: RunInfo, stands: str) -> str:
    if stands in ("stale", "failed"):
        return f" at step {run.step} (start it again, or holdfast resume {run.run_id})"
    return f" at step {run.step}"


@command
def tree(
    cli: Cli,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only this run's family.")] = None,
    limit: Annotated[int, Option("-n", "--limit", help="How many.", min=1)] = 100,
) -> None:
    """Show runs with their forks below them."""
    from holdfast.checkpoint.inspect import fork_origins

    origins = fork_origins(cli.storage)
    rows = list(_rows(cli, _roots(cli, run, origins, limit), origins, 0))
    cli.give(Tree(runs=rows), lambda: _lines(rows))


def _roots(cli: Cli, run: str | None, origins: dict[str, Origin], limit: int) -> list[RunInfo]:
    """The runs that are no fork of one that is there."""
    from itertools import islice

    from holdfast.cli.commands.see.graph_log import family_of
    from holdfast.storage.base import RunQuery

    manager = cli.manager
    if run is not None:
        found = cli.finder.run(run)
        first = (manager.reader.run(member) for member in family_of(cli, found.run_id))
        return [next(member for member in first if member is not None)]
    roots = (
        one
        for one in cli.storage.runs(RunQuery())
        if one.run_id not in origins or manager.reader.run(origins[one.run_id].run_id) is None
    )
    return list(islice(roots, limit))


def _rows(
    cli: Cli, runs: list[RunInfo], origins: dict[str, Origin], depth: int
) -> Iterator[TreeRun]:
    from holdfast.checkpoint.inspect import standing

    for run in runs:
        yield TreeRun(
            run_id=run.run_id,
            name=run.name,
            status=standing(cli.storage, run),
            step=run.step,
            depth=depth,
            forked_from=origins.get(run.run_id) if depth else None,
        )
        reader = cli.manager.reader
        forks = [fork for fork, origin in origins.items() if origin.run_id == run.run_id]
        found = [one for one in map(reader.run, forks) if one is not None]
        yield from _rows(cli, sorted(found, key=lambda one: one.ordinal), origins, depth + 1)


def _lines(rows: list[TreeRun]) -> Iterator[object]:
    for at, row in enumerate(rows):
        stem = ""
        if row.depth:
            stem = "".join(
                "│  " if _goes_on(rows, at, depth) else "   " for depth in range(1, row.depth)
            )
            stem += "├─ " if _goes_on(rows, at, row.depth) else "└─ "
        origin = row.forked_from
        yield Line.of(
            Cell(stem, "dim"),
            Cell(row.run_id, "bold"),
            Cell(f" {row.name}" if row.name else "", "dim"),
            " ",
            status_cell(row.status),
            f" at step {row.step}",
            Cell(f", from step {origin.step}" if origin else "", "dim"),
        )


def _goes_on(rows: list[TreeRun], at: int, depth: int) -> bool:
    """Whether another row of that depth follows before one that is less deep."""
    for row in rows[at + 1 :]:
        if row.depth <= depth:
            return row.depth == depth
    return False
