"""`surehold prune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.engine.retention import Freed, plan_freeing
from surehold.storage.base import RunInfo


class PruneRow(msgspec.Struct, kw_only=True):
    """The space that is freed of a run."""

    run_id: str
    records: int
    bytes: int


class Prune(ui.Document, kw_only=True, tag="prune"):
    dry_run: bool
    records: int
    bytes: int
    runs: Annotated[list[PruneRow], ui.Rows("pruned")]


@ui.command
def prune(
    cli: ui.Cli, runs: ui.Runs = None, dry_run: ui.DryRun = False, yes: ui.Yes = False
) -> None:
    """Free the space of checkpoints that were forgotten.

    Records that a kept checkpoint builds on stay. It works run by run: interrupted anywhere, it
    lost nothing and continues when called again.
    """
    found = _plans(cli, cli.finder.runs(runs))
    document = Prune(
        dry_run=dry_run,
        records=sum(one.records for one in found),
        bytes=sum(one.stored for one in found),
        runs=[PruneRow(run_id=o.run_id, records=o.records, bytes=o.stored) for o in found],
    )
    if found and not dry_run:
        records = ui.counted(document.records, "record")
        cli.confirm(f"{records} would be erased, {ui.size(document.bytes)}", yes=yes)
        _free(cli, found)
    cli.give(document, lambda: _text(document))


def free(cli: ui.Cli, runs: Sequence[RunInfo]) -> int:
    """Free what these runs have forgotten; gives the bytes."""
    found = _plans(cli, runs)
    _free(cli, found)
    return sum(one.stored for one in found)


def _plans(cli: ui.Cli, runs: Sequence[RunInfo]) -> list[Freed]:
    looked_at = cli.progress("looking", runs, len(runs))
    plans = (plan_freeing(cli.manager.retention, run) for run in looked_at)
    return [plan for plan in plans if plan is not None]


def _free(cli: ui.Cli, found: list[Freed]) -> None:
    for one in cli.progress("pruning", found, len(found)):
        cli.manager.cleanup_old_checkpoints(one.run_id)


def _text(document: Prune) -> Iterator[object]:
    yield ui.Table.of(
        document.runs,
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True),
        ui.Column("records", right=True),
        ui.Column("freed", lambda one: ui.size(one.bytes)),
    )
    word = "would be freed" if document.dry_run else "freed"
    yield ui.Line.of(
        f"{ui.size(document.bytes)} {word}" if document.runs else "there is nothing to free"
    )
