"""`surehold cat`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.errors import NotFoundError
from surehold.views.finder import split_path
from surehold.views.values import read_value_at


@ui.command
def cat(
    cli: ui.Cli,
    what: Annotated[
        str, ui.Argument(metavar="RUN[@N][:PATH]", help="The value; else the whole state.")
    ],
) -> None:
    """Print one value of a checkpoint, as in RUN@12:state.messages[-1].content.

    PATH begins with state or metadata and leads through what `surehold show` prints. A string is
    printed without quotes, any other value as JSON.
    """
    address, path = split_path(what)
    try:
        header = cli.finder.checkpoint(address)
    except NotFoundError as error:
        raise _better(cli, what, error) from None
    document = read_value_at(cli.manager, header, path, address)
    cli.give(document, lambda: [ui.readable(document.value)])


def _better(cli: ui.Cli, what: str, error: NotFoundError) -> NotFoundError:
    """The error, with a hint if the path only lacks ``state`` at its start."""
    address, colon, path = what.rpartition(":")
    try:
        header = cli.finder.checkpoint(address) if colon and path else None
    except NotFoundError:
        header = None
    if header is None:
        return error
    return NotFoundError(
        f"{path!r} is not a path: one begins with state or metadata",
        hint=f"did you mean {address}:state.{path}?",
        run_id=header.run_id,
    )
