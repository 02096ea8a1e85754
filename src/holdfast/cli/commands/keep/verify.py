"""`holdfast verify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from holdfast.checkpoint.repair import RunVerdict
from holdfast.cli.framework import (
    Cell,
    Cli,
    Column,
    Document,
    Line,
    Option,
    Runs,
    Table,
    command,
    counted,
    exits,
)
from holdfast.errors import HoldfastError


class Verify(Document, kw_only=True, tag="verify"):
    """``verify``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "verdict"
    read_data: bool
    sound: bool
    runs: list[RunVerdict]
    """A run without problems is sound."""


@command
def verify(
    cli: Cli,
    runs: Runs = None,
    read_data: Annotated[
        bool, Option("--read-data", help="Open every record and rebuild every state.")
    ] = False,
) -> int:
    """Check runs: heads, the digests of all headers, and that keyframes are there.

    With --read-data, also every body and every state. Damage exits with 7.
    """
    document = verify_runs(cli, runs, read_data=read_data)
    cli.give(document, lambda: _text(document))
    if not document.sound and cli.for_people:
        cli.say(Cell("holdfast repair --dry-run shows what can be repaired", "dim"))
    return 0 if document.sound else exits.DAMAGED


def verify_runs(cli: Cli, names: list[str] | None, *, read_data: bool) -> Verify:
    """Check the runs that are named, or all."""
    from holdfast.checkpoint.repair import verify_headers, verify_missing, verify_run

    look = verify_run if read_data else verify_headers
    verdicts: list[RunVerdict] = []
    try:
        chosen = cli.finder.runs(names)
    except HoldfastError as error:
        if exits.code_of(error) != exits.DAMAGED:
            raise
        verdicts.append(RunVerdict(str(error.facts.get("run_id", "")), 0, (error.message,)))
        chosen = []
    with cli.progress("verifying", len(chosen)) as advance:
        for run in chosen:
            verdicts.append(look(cli.manager.reader, run))
            advance()
    if not names:
        known = {one.run_id for one in verdicts}
        missing = verify_missing(cli.manager.reader)
        verdicts += [one for one in missing if one.run_id not in known]
    return Verify(read_data=read_data, sound=all(verdicts), runs=verdicts)


def _text(document: Verify) -> Iterator[object]:
    bad = [one for one in document.runs if not one]
    if bad:
        columns = (Column("run", gives=True, rank=1), Column("problem", gives=True))
        rows = [[Cell(one.run_id, "bold"), Cell(p, "red")] for one in bad for p in one.problems]
        yield Table(columns, rows)
    total = sum(one.records for one in document.runs)
    checked = counted(total, "header")
    how = "--read-data opens every record"
    if document.read_data:
        checked, how = counted(total, "record"), "every state rebuilt"
    word = Cell("sound", "green") if document.sound else Cell(f"{len(bad)} damaged", "red")
    yield Line.of(
        f"{counted(len(document.runs), 'run')}, {checked}: ", word, Cell(f" ({how})", "dim")
    )
