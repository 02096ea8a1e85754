"""`surehold replay`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.record.exec_ import (
    Command,
    Freeze,
    Loose,
    Passed,
    Proxied,
    Urls,
    chosen,
    document_of,
    sources,
)
from surehold.core.records import check_run_id
from surehold.errors import UsageError
from surehold.integrations.recorder import MatchRules, Program, Selection, changing, replay_program


@ui.command
def replay(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(metavar="RUN", help="The run whose calls are given.")],
    command: Command = None,
    offline: Annotated[
        bool, ui.Option(help="No live call: what was not recorded is an error. The default.")
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
) -> int:
    """Start a program on the recorded calls of a run; the run stays as it is.

    With --from 12, eleven calls are replayed, and the program continues live, in a forked run.
    --set model=gpt-5 changes the body of each request from there on.
    """
    if begin is None and (set or run_id):
        raise UsageError("--set and --as need --from", hint="--from 12 is live from call 12 on")
    if begin is not None and offline:
        raise UsageError("--from and --offline exclude each other", hint="give one of them")
    if run_id is not None:
        check_run_id(run_id, "--as")
    edit = ui.read_pairs("--set", set or ())
    program = Program(
        command=tuple(command or ()),
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
    ended = replay_program(
        program, source, cli.manager, lambda line: cli.say(f"surehold: {line}"), fork=run_id
    )
    if not cli.for_people:
        cli.give(document_of(ended), list)
    return ended.code
