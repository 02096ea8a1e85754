"""`surehold savings`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.agents.models import shown
from surehold.cli import framework as ui
from surehold.cli.commands.record.exec_ import chosen
from surehold.integrations.recorder import GROUPS, Saving, duration, read_savings


class Savings(ui.Document, kw_only=True, tag="savings"):
    by: str
    savings: Annotated[list[Saving], ui.Rows("saving")]
    total: Saving


@ui.command
def savings(
    cli: ui.Cli,
    by: Annotated[str, ui.Option(metavar="WHAT", help="run, name or day.")] = "run",
) -> None:
    """Add up the calls, money and time that resumes and replays did not pay again.

    Only recorded programs count: surehold exec and surehold.record.
    """
    rows, total = read_savings(cli.manager, chosen(by, "--by", tuple(GROUPS)))
    document = Savings(by=by, savings=rows, total=total)
    cli.give(document, lambda: _text(document))


def _text(document: Savings) -> Iterator[object]:
    for one in document.savings:
        yield ui.Line.of(ui.Cell(one.group, "bold"), f"  {_line(one)}")
    yield f"{_line(document.total)} in {ui.counted(document.total.runs, 'run')}"


def _line(one: Saving) -> str:
    money = f"{shown(one.dollars)}, " if one.dollars else ""
    saved = f"{money}{duration(one.seconds)} saved in {ui.counted(one.starts, 'start')}"
    return f"{ui.counted(one.calls, 'call')}, {saved}"
