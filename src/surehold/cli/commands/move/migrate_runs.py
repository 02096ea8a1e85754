"""`surehold migrate-runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from surehold.cli import framework as ui
from surehold.errors import UsageError
from surehold.executors import Move, move_runs

_STATES = ("ready", "waiting", "dead", "cancelled")
_SHOWN = 40
_STYLES = {"unfit": "red", "held": "yellow"}


class MigrateRuns(ui.Document, kw_only=True, tag="migrate-runs"):
    dry_run: bool
    runs: Annotated[list[Move], ui.Rows("moved")]


@ui.command
def migrate_runs(
    cli: ui.Cli,
    old: Annotated[str, ui.Argument(metavar="OLD", help="The code: MODULE:NAME@VERSION.")],
    new: Annotated[
        str, ui.Argument(metavar="NEW", help="The code that executes them from now on.")
    ],
    within: Annotated[
        str | None, ui.Option("--in", metavar="QUEUE", help="Only runs of this queue.")
    ] = None,
    state: Annotated[
        list[str] | None,
        ui.Option(metavar="STATE", help="Only runs in this state: ready, dead, ..."),
    ] = None,
    no_check: Annotated[bool, ui.Option("--no-check", help="Replay none of them first.")] = False,
    dry_run: ui.DryRun = False,
    yes: ui.Yes = False,
) -> int:
    """Move queued runs to another version of their code.

    A copy of each run is replayed by the new code, until its first call that is not recorded: no
    step is executed. Runs that do not fit, and runs that a worker is executing, stay unchanged.
    Without --state, ready and waiting runs are moved. If a run does not fit, the exit code is 8.
    """
    ui.import_from_here()
    states: Any = tuple(state or _STATES[:2])
    for one in states:
        if one not in _STATES:
            raise UsageError(f"no run that is {one!r} can be moved", hint=", ".join(_STATES))

    def moved(*, dry_run: bool) -> list[Move]:
        found = move_runs(
            old,
            new,
            manager=cli.manager,
            states=states,
            queue=within,
            check=not no_check,
            dry_run=dry_run,
            by=cli.who,
        )
        return [*found]

    if not dry_run:
        cli.confirm(f"the runs of {old} that fit {new} would be moved to it", yes=yes)
    document = MigrateRuns(dry_run=dry_run, runs=moved(dry_run=dry_run))
    cli.give(document, lambda: _text(document))
    return 8 if any(one.outcome == "unfit" for one in document.runs) else 0


def _text(document: MigrateRuns) -> Iterator[object]:
    yield ui.Table.of(
        document.runs[:_SHOWN],
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=2),
        ui.Column("state"),
        ui.Column("what", lambda one: ui.Cell(one.outcome, _STYLES.get(one.outcome, "green"))),
        ui.Column("problem", gives=True),
    )
    if len(document.runs) > _SHOWN:
        yield ui.Cell(f"... {len(document.runs) - _SHOWN:,} more; --jsonl lists all", "dim")
    counts = Counter(one.outcome for one in document.runs)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
    yield told or "no such runs"
