"""`surehold cat`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.cli.addresses import split_path
from surehold.cli.commands.see.paths import parts_of, tree_of, value_at
from surehold.core.records import Header
from surehold.engine.managers import CheckpointManager
from surehold.errors import NotFoundError


class ValueAt(ui.Document, kw_only=True, tag="value"):
    """``cat``"""

    run_id: str
    checkpoint_id: str
    step: int
    path: str
    value: Any


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


def read_value_at(manager: CheckpointManager, header: Header, path: str, address: str) -> ValueAt:
    """The value at *path* of a checkpoint, which errors call *address*."""
    parts = parts_of(path)
    if parts[0] == "metadata":
        root: dict[str, Any] = {"metadata": header.metadata}
    else:
        root = {"state": _tree(manager, header, parts[1:2])}
    return ValueAt(
        run_id=header.run_id,
        checkpoint_id=header.id,
        step=header.step,
        path=path,
        value=value_at(root, parts, address),
    )


def _tree(manager: CheckpointManager, header: Header, key: list[str | int]) -> dict[str, Any]:
    """The state, or only the value under *key* if that is there."""
    texts = manager.reader.values(header, [str(one) for one in key]) if key else {}
    if texts:
        return {name: msgspec.json.decode(text) for name, text in texts.items()}
    return tree_of(manager.reader.load_visible(header))


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
