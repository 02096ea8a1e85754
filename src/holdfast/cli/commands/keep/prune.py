"""`holdfast prune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.commands.keep.documents import Prune, PruneRow
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    DryRun,
    Line,
    Table,
    Yes,
    command,
    size,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.retention import Freed
    from holdfast.storage.base import RunInfo

__all__ = ["free", "prune"]


@command
def prune(
    cli: Cli,
    runs: Annotated[
        list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Free the space of checkpoints that were forgotten.

    It goes run by run: interrupted anywhere it has lost nothing, and goes on when called again.
    """
    from holdfast.cli.commands.keep.forget import chosen_runs

    chosen = chosen_runs(cli, runs or [])
    found = _plans(cli, chosen)
    total = sum(one.stored for one in found)
    if found and not dry_run:
        records = sum(one.records for one in found)
        cli.confirm(f"{records} records would go for good, {size(total)}", yes=yes)
        _free(cli, found)
    document = Prune(
        dry_run=dry_run,
        records=sum(one.records for one in found),
        bytes=total,
        runs=[PruneRow(run_id=o.run_id, records=o.records, bytes=o.stored) for o in found],
    )
    cli.give(document, lambda: _text(found, document))


def free(cli: Cli, runs: Sequence[RunInfo]) -> None:
    """Free what these runs have forgotten."""
    _free(cli, _plans(cli, runs))


def _plans(cli: Cli, runs: Sequence[RunInfo]) -> list[Freed]:
    from holdfast.checkpoint.retention import plan_freeing

    found: list[Freed] = []
    with cli.progress("looking", len(runs)) as advance:
        for run in runs:
            plan = plan_freeing(cli.manager.retention, run)
            if plan is not None:
                found.append(plan)
            advance()
    return found


def _free(cli: Cli, found: list[Freed]) -> None:
    with cli.progress("pruning", len(found)) as advance:
        for one in found:
            cli.manager.cleanup_old_checkpoints(one.run_id)
            advance()


def _text(found: list[Freed], document: Prune) -> Iterator[object]:
    if found:
        columns = (Column("run", gives=True), Column("records", right=True), Column("freed"))
        rows = [[Cell(one.run_id, "bold"), one.records, size(one.stored)] for one in found]
        yield Table(columns, rows)
    word = "would be freed" if document.dry_run else "freed"
    yield Line.of(f"{size(document.bytes)} {word}" if found else "there is nothing to free")
