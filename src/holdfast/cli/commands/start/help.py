"""`holdfast help`."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli import framework as ui
from holdfast.errors import UsageError


@ui.command
def help(
    cli: ui.Cli,
    name: Annotated[str | None, ui.Argument(metavar="COMMAND", help="The command.")] = None,
) -> None:
    """Print the help of a command, or the list of commands."""
    from holdfast.cli.app import help_text, load

    if name is None:
        cli.terminal.stdout.write(help_text())
        return
    found = load(name)
    if isinstance(found, str):
        raise UsageError(found, hint="holdfast --help lists them")
    cli.terminal.stdout.write(found.signature.help())
