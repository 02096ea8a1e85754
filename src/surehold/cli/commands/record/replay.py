"""`surehold replay`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.changes import change_lines
from surehold.cli.commands.record.exec_ import (
    Command,
    Freeze,
    Loose,
    Passed,
    Proxied,
    Urls,
    chosen,
    document_of,
    say_lines,
    sources,
)
from surehold.cli.entries import entry_for
from surehold.core.records import check_run_id
from surehold.doors.resume import ReplayVerdict, load_resumable, replay_run
from surehold.errors import UsageError
from surehold.integrations.recorder import (
    Divergence,
    MatchRules,
    Program,
    Selection,
    changing,
    offline,
    replay_program,
)
from surehold.storage.base import RunInfo
from surehold.views.comparison import rows_from
from surehold.views.documents import ChangeRow


class Replayed(ui.Document, kw_only=True, tag="replayed"):
    """``replay`` of a run without a command"""

    run_id: str
    steps: int
    """Steps that were executed again."""
    of: int
    step: int | None
    """The first step that differs."""
    node: str | None
    detail: str
    changes: Annotated[list[ChangeRow], ui.Rows("change")]


@ui.command
def replay(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(metavar="RUN", help="The run whose calls are given.")],
    command: Command = None,
    without_live: Annotated[
        bool,
        ui.Option(
            "--offline", help="No live call: what was not recorded is an error. The default."
        ),
    ] = False,
    begin: Annotated[
        int | None, ui.Option("--from", metavar="N", help="Live from call N, as a new run.", min=1)
    ] = None,
    set: Annotated[
        list[str] | None, ui.Option(metavar="KEY=VALUE", help="Change what is sent from there on.")
    ] = None,
    run_id: Annotated[str | None, ui.Option("--as", metavar="RUN", help="The new run.")] = None,
    record: Urls = None,
    passed: Passed = None,
    loose: Loose = False,
    freeze: Freeze = None,
    proxy: Proxied = "auto",
    entry: Annotated[
        str | None, ui.Option(metavar="MODULE:NAME", help="Without a command: the run's code.")
    ] = None,
    yes: ui.Yes = False,
) -> int:
    """Start a program on the recorded calls of a run; the run stays as it is.

    With --from 12, eleven calls are replayed, and the program continues live, in a forked run.
    --set model=gpt-5 changes the body of each request from there on.

    Without a command, the run is one of a workflow, graph, agent or fleet: each of its steps is
    executed again, with its recorded calls, and the first whose state differs is shown.
    """
    if not command:
        return _steps(cli, cli.finder.run(run), entry, yes=yes)
    if begin is None and (set or run_id):
        raise UsageError("--set and --as need --from", hint="--from 12 is live from call 12 on")
    if begin is not None and without_live:
        raise UsageError("--from and --offline exclude each other", hint="give one of them")
    if run_id is not None:
        check_run_id(run_id, "--as")
    edit = ui.read_pairs("--set", set or ())
    program = Program(
        command=tuple(command),
        selection=Selection(tuple(record or ()), tuple(passed or ())),
        rules=MatchRules(
            offline=begin is None,
            loose=loose,
            until=begin,
            on_divergence="stop",
            change=changing(edit) if edit else None,
        ),
        proxy=chosen(proxy, "--proxy", ("auto", "on", "off")),
        freeze=sources(freeze),
    )
    source = cli.finder.run(run).run_id
    ended = replay_program(program, source, cli.manager, say_lines(cli), fork=run_id)
    if not cli.for_people:
        cli.give(document_of(ended), list)
    return ended.code


def _steps(cli: ui.Cli, run: RunInfo, entry: str | None, *, yes: bool) -> int:
    """Replay the steps of a run of our own."""
    where = entry_for(cli, run, entry, yes=yes)
    ui.import_from_here()
    resumable = load_resumable(where)
    heard = io.StringIO()  # the output of the code belongs to no report
    with redirect_stdout(heard), redirect_stderr(heard), offline(f"replay of {run.run_id}"):
        found = replay_run(cli.manager, resumable, run.run_id, refusals=(Divergence,))
    document = Replayed(
        run_id=found.run_id,
        steps=found.steps,
        of=found.of,
        step=found.step,
        node=found.node,
        detail=found.detail,
        changes=rows_from(found.recorded, found.changes) if found.recorded else [],
    )
    cli.give(document, lambda: _text(found, document))
    return 0 if found.step is None else 8


def _text(found: ReplayVerdict, document: Replayed) -> Iterator[object]:
    if found.step is None:
        yield f"{found.of} steps of {found.run_id} were replayed; their states are the same"
        return
    node = f" ({found.node})" if found.node else ""
    yield ui.Line.of(ui.Cell(f"{found.run_id}@{found.step}", "bold"), f"{node}: {found.detail}")
    yield from change_lines(document.changes)
