"""`surehold verify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.engine.repair import RunVerdict, verify_headers, verify_missing, verify_run
from surehold.errors import SureholdError


class Verify(ui.Document, kw_only=True, tag="verify"):
    read_data: bool
    sound: bool
    runs: Annotated[list[RunVerdict], ui.Rows("verdict")]
    """A run without problems is sound."""


@ui.command
def verify(
    cli: ui.Cli,
    runs: ui.Runs = None,
    read_data: Annotated[
        bool, ui.Option(help="Open every record and rebuild every state.")
    ] = False,
) -> int:
    """Check runs: heads, the digests of all headers, and that keyframes are there.

    With --read-data, also every body and every state. Damage exits with 7.
    """
    document = verify_runs(cli, runs, read_data=read_data)
    cli.give(document, lambda: _text(document))
    if not document.sound and cli.for_people:
        cli.say(ui.Cell("surehold repair --dry-run shows what can be repaired", "dim"))
    return 0 if document.sound else ui.exits.DAMAGED


def verify_runs(cli: ui.Cli, names: list[str] | None, *, read_data: bool) -> Verify:
    """Check the runs that are named, or all."""
    look = verify_run if read_data else verify_headers
    verdicts: list[RunVerdict] = []
    try:
        chosen = cli.finder.runs(names)
    except SureholdError as error:
        if ui.exits.code_of(error) != ui.exits.DAMAGED:
            raise
        verdicts.append(RunVerdict(str(error.facts.get("run_id", "")), 0, (error.message,)))
        chosen = []
    tried = cli.progress("verifying", chosen, len(chosen))
    verdicts += (look(cli.manager.reader, run) for run in tried)
    if not names:
        known = {one.run_id for one in verdicts}
        missing = verify_missing(cli.manager.reader)
        verdicts += [one for one in missing if one.run_id not in known]
    return Verify(read_data=read_data, sound=all(verdicts), runs=verdicts)


def _text(document: Verify) -> Iterator[object]:
    bad = [one for one in document.runs if not one]
    columns = (ui.Column("run", gives=True, rank=1), ui.Column("problem", gives=True))
    rows = [[ui.Cell(one.run_id, "bold"), ui.Cell(p, "red")] for one in bad for p in one.problems]
    yield ui.Table(columns, rows)
    total = sum(one.records for one in document.runs)
    checked = ui.counted(total, "header")
    how = "--read-data opens every record"
    if document.read_data:
        checked, how = ui.counted(total, "record"), "every state rebuilt"
    word = ui.Cell("sound", "green") if document.sound else ui.Cell(f"{len(bad)} damaged", "red")
    yield ui.Line.of(
        f"{ui.counted(len(document.runs), 'run')}, {checked}: ", word, ui.Cell(f" ({how})", "dim")
    )
