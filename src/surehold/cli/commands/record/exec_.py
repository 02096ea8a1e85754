"""`surehold exec`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from shutil import which
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.errors import UsageError
from surehold.integrations.recorder import MatchRules, Program, ProgramEnd, Selection, execute
from surehold.storage.addresses import nearest

Urls = Annotated[
    list[str] | None, ui.Option("--record", metavar="URL", help="Record such URLs too; * is any.")
]
Passed = Annotated[
    list[str] | None, ui.Option("--pass", metavar="URL", help="Never record such URLs.")
]
Loose = Annotated[bool, ui.Option(help="Overlook times, ids, addresses and temporary names.")]
Freeze = Annotated[
    list[str] | None,
    ui.Option(metavar="SOURCES", help="Make time, random or uuid the same in every start."),
]
Proxied = Annotated[
    str, ui.Option(metavar="WHEN", help="on, off, or auto: for what is not Python.")
]
Command = Annotated[
    list[str] | None, ui.Argument("-- COMMAND", help="The program and its arguments.")
]


class ProgramReport(ui.Document, kw_only=True, tag="exec"):
    """``exec`` and ``replay``"""

    run_id: str
    status: str
    code: int
    starts: int
    recorded: int
    replayed: int
    live: int
    saved_dollars: float
    saved_seconds: float
    diverged: str


def document_of(ended: ProgramEnd) -> ProgramReport:
    """The end of a program, as a document."""
    facts = msgspec.structs.asdict(ended)
    dollars, seconds = facts.pop("dollars"), facts.pop("seconds")
    return ProgramReport(**facts, saved_dollars=dollars, saved_seconds=round(seconds, 3))


def chosen(word: str, option: str, words: tuple[str, ...]) -> Any:
    """*word* if it is one of *words*, else a `UsageError`."""
    if word not in words:
        hint = f"{nearest(word, words)}{option} is one of {', '.join(words)}"
        raise UsageError(f"{option} is {word!r}", hint=hint)
    return word


def sources(freeze: list[str] | None) -> tuple[str, ...]:
    """The sources that are frozen; commas and several options are the same."""
    return tuple(one for word in freeze or () for one in word.split(",") if one)


def say_lines(cli: ui.Cli) -> Callable[[str], None]:
    """Prints what a recorded program comes to; a divergence has several lines."""

    def say(text: str) -> None:
        for line in f"surehold: {text}".splitlines():
            cli.say(line)

    return say


@ui.command
def exec_(
    cli: ui.Cli,
    command: Command = None,
    run: Annotated[
        str | None, ui.Option("--run", metavar="RUN", help="Begin or resume it.")
    ] = None,
    record: Urls = None,
    passed: Passed = None,
    on_divergence: Annotated[
        str, ui.Option(metavar="DO", help="stop, or live: continue with live calls.")
    ] = "stop",
    in_doubt: Annotated[
        str | None,
        ui.Option(
            metavar="DO",
            help="retry, or ask: a person decides if a request to a --record URL that is no GET"
            " may have happened.",
        ),
    ] = None,
    loose: Loose = False,
    freeze: Freeze = None,
    proxy: Proxied = "auto",
    restart: Annotated[
        int, ui.Option(metavar="N", help="Start it again if it dies, up to N times.", min=0)
    ] = 0,
    backoff: Annotated[
        float, ui.Option(metavar="SECONDS", help="The first pause; doubled each time.", min=0)
    ] = 1.0,
) -> int:
    """Start a program as it is, record its model calls, and resume it.

    Started again with the same --run after a crash, the program gets the recorded answers, and
    its first new call is live. A run whose program ended with exit code 0 is completed.
    """
    decided = None if in_doubt is None else chosen(in_doubt, "--in-doubt", ("retry", "ask"))
    program = Program(
        command=tuple(command or ()),
        selection=Selection(tuple(record or ()), tuple(passed or ())),
        rules=MatchRules(
            on_divergence=chosen(on_divergence, "--on-divergence", ("stop", "live")),
            in_doubt=decided,
            loose=loose,
        ),
        proxy=chosen(proxy, "--proxy", ("auto", "on", "off")),
        freeze=sources(freeze),
        restart=restart,
        backoff=backoff,
    )
    stem = re.sub(r"[^\w.-]+", "-", Path(program.name).stem)
    run_id = run or f"{stem}-{datetime.now():%Y%m%d-%H%M%S}"
    if run is None and which(program.command[0]):
        cli.say(f"surehold: run {run_id}; --run {run_id} resumes it")
    ended = execute(program, run_id, cli.open(), say_lines(cli))
    if not cli.for_people:
        cli.give(document_of(ended), list)
    return ended.code
