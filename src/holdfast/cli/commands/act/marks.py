"""`holdfast tag` and `holdfast pin`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from holdfast.cli.commands.act.documents import Marked
from holdfast.cli.framework import Argument, Cell, Cli, Line, Option, command
from holdfast.errors import UsageError

__all__ = ["pin", "tag"]

_Where = Annotated[str, Argument(metavar="RUN[@N]", help="The checkpoint.")]


@command
def tag(
    cli: Cli,
    checkpoint: _Where,
    names: Annotated[list[str] | None, Argument(metavar="NAME", help="The tags.")] = None,
    remove: Annotated[
        list[str] | None, Option("--remove", "-r", metavar="NAME", help="Take it away.")
    ] = None,
) -> None:
    """Give a checkpoint tags, or take some away; tag:NAME then stands for it."""
    if not names and not remove:
        raise UsageError("no tag is given", hint="name one, or --remove one")
    header = cli.finder.checkpoint(checkpoint)
    cli.manager.tag(header.id, *(names or ()), remove=remove or ())
    _give(cli, header.id)


@command
def pin(
    cli: Cli,
    checkpoint: _Where,
    remove: Annotated[bool, Option("--remove", "-r", help="Unpin it.")] = False,
) -> None:
    """Keep a checkpoint, whatever the rules of retention say."""
    header = cli.finder.checkpoint(checkpoint)
    (cli.manager.unpin if remove else cli.manager.pin)(header.id)
    _give(cli, header.id)


def _give(cli: Cli, checkpoint_id: str) -> None:
    manager = cli.manager
    header = manager.retention.with_tags(manager.reader.resolve(checkpoint_id))
    pinned = header.seq in manager.retention.marks(header.run_id).pinned
    document = Marked(
        run_id=header.run_id,
        checkpoint_id=header.id,
        step=header.step,
        tags=header.tags,
        pinned=pinned,
    )

    def text() -> Iterator[object]:
        marks = [*(["pinned"] if pinned else []), *(f"#{tag}" for tag in header.tags)]
        yield Line.of(
            Cell(f"{header.run_id}@{header.step}", "bold"),
            " ",
            Cell(" ".join(marks) or "no marks", "cyan"),
        )

    cli.give(document, text)
