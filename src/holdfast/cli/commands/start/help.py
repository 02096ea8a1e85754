"""`holdfast help`."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli.framework import Argument, Cli, command
from holdfast.errors import UsageError


@command
def help(
    cli: Cli,
    name: Annotated[str | None, Argument(metavar="COMMAND", help="The command.")] = None,
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
