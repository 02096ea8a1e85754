"""`holdfast verify`, `repair` and `rotate-key`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.commands.keep.documents import Repair, Rotated, VerdictRow, Verify
from holdfast.cli.commands.keep.forget import chosen_runs
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    DryRun,
    Line,
    Option,
    Table,
    Yes,
    command,
    exits,
)
from holdfast.errors import DataError, HoldfastError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Verdict

__all__ = ["repair", "rotate_key", "verify"]

_KEY_VARIABLES = ("HOLDFAST_ENCRYPTION_KEY", "HOLDFAST_ENCRYPTION_KEY_FILE")


@command
def verify(
    cli: Cli,
    runs: Annotated[
        list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")
    ] = None,
    read_data: Annotated[
        bool, Option("--read-data", help="Open every record and rebuild every state.")
    ] = False,
) -> int:
    """Check runs: heads, the digests of all headers, and that keyframes are there.

    With --read-data, also every body and every state. Damage exits with 7.
    """
    from holdfast.checkpoint.inspect import verify as verify_all
    from holdfast.checkpoint.retention import verify_headers

    reader = cli.manager.reader
    look = verify_all if read_data else verify_headers
    verdicts: list[Verdict] = []
    try:
        chosen = chosen_runs(cli, runs or [])
    except HoldfastError as error:
        if exits.code_of(error) != exits.DAMAGED:
            raise
        verdicts.append(_of_storage(error))
        chosen = []
    with cli.progress("verifying", len(chosen)) as advance:
        for run in chosen:
            verdicts.append(look(reader, run))
            advance()
    rows = [
        VerdictRow(run_id=one.run_id, records=one.records, sound=bool(one), problems=one.problems)
        for one in verdicts
    ]
    sound = all(row.sound for row in rows)
    document = Verify(read_data=read_data, sound=sound, runs=rows)
    cli.give(document, lambda: _verdicts(document))
    if not sound and cli.for_people:
        cli.say(Cell("holdfast repair --dry-run shows what can be mended", "dim"))
    return 0 if sound else exits.DAMAGED


def _of_storage(error: HoldfastError) -> Verdict:
    from holdfast.checkpoint.inspect import Verdict

    return Verdict(str(error.facts.get("run_id", "")), 0, (error.message,))


def _verdicts(document: Verify) -> Iterator[object]:
    bad = [row for row in document.runs if not row.sound]
    if bad:
        columns = (Column("run", gives=True), Column("problem", gives=True))
        rows = [[Cell(row.run_id, "bold"), Cell(p, "red")] for row in bad for p in row.problems]
        yield Table(columns, rows)
    records = sum(row.records for row in document.runs)
    word = Cell("sound", "green") if document.sound else Cell(f"{len(bad)} damaged", "red")
    how = "every state rebuilt" if document.read_data else "headers only; --read-data opens all"
    yield Line.of(f"{len(document.runs)} runs, {records} records: ", word, Cell(f" ({how})", "dim"))


@command
def repair(
    cli: Cli,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only this run; else all.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Put aside what is damaged, so that the rest goes on; what cannot be read is never guessed.

    What was put aside is kept, and a note in the run tells of it.
    """
    run_id = None if run is None else _run_id(cli, run)
    report = cli.manager.repair(run_id, dry_run=True)
    if not report.clean and not dry_run:
        if cli.for_people:
            cli.terminal.show([str(report)])
        cli.confirm("that would be done", yes=yes)
        report = cli.manager.repair(run_id)
    document = Repair(dry_run=dry_run, clean=report.clean, medium=report.medium, runs=report.runs)
    cli.give(document, lambda: [str(report)])


def _run_id(cli: Cli, text: str) -> str:
    """The run's id; where damage keeps it from being looked up, *text* is taken for it."""
    try:
        return cli.finder.run(text).run_id
    except DataError:
        return text


@command
def rotate_key(
    cli: Cli,
    runs: Annotated[
        list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")
    ] = None,
    old_key_file: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="A file with a key that runs are encrypted with now."),
    ] = None,
) -> None:
    """Bring encrypted runs under the key of HOLDFAST_ENCRYPTION_KEY or .._KEY_FILE.

    No state is rewritten. It may be interrupted and called again.
    """
    chosen = chosen_runs(cli, runs or [])
    if not any(cli.terminal.environ.get(name, "").strip() for name in _KEY_VARIABLES):
        raise UsageError(
            "there is no key to rotate to",
            hint=f"set {_KEY_VARIABLES[0]} or {_KEY_VARIABLES[1]} to the new one, and give the old"
            " ones by --old-key-file",
        )
    manager = cli.open(old_keys=tuple(old_key_file or ()))
    changed = 0
    with cli.progress("rotating", len(chosen)) as advance:
        for run in chosen:
            changed += manager.rotate_keys(run.run_id)
            advance()
    cli.give(
        Rotated(runs=changed), lambda: [Line.of(f"{changed} of {len(chosen)} runs changed keys")]
    )
