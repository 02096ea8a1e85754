"""`surehold help`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.listing import help_text, load


@ui.command
def help(
    cli: ui.Cli,
    name: Annotated[str | None, ui.Argument(metavar="COMMAND", help="The command.")] = None,
) -> None:
    """Print the help of a command, or the list of commands."""
    cli.terminal.stdout.write(help_text() if name is None else load(name).signature.help())
