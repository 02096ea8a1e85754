"""`surehold tag`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.act.pin import Place, show_marks
from surehold.errors import NotFoundError, UsageError


@ui.command
def tag(
    cli: ui.Cli,
    checkpoint: Place,
    names: Annotated[list[str] | None, ui.Argument(metavar="NAME", help="The tags.")] = None,
    remove: Annotated[
        list[str] | None, ui.Option("--remove", "-r", metavar="NAME", help="Remove this tag.")
    ] = None,
) -> None:
    """Add tags to a checkpoint, or remove some; tag:NAME then names it."""
    if not names and not remove:
        raise UsageError("no tag is given", hint="name one, or --remove one")
    header = cli.finder.checkpoint(checkpoint)
    for name in remove or ():
        if name not in header.tags:
            raise NotFoundError(
                f"checkpoint {header.run_id}@{header.step} has no tag {name!r}",
                hint=f"it has {', '.join(header.tags) or 'none'}",
                run_id=header.run_id,
            )
    cli.manager.tag(header.id, *(names or ()), remove=remove or ())
    did = [*(f"#{name}" for name in names or ()), *(f"no #{name}" for name in remove or ())]
    cli.note(header.run_id, f"tagged step {header.step}: {', '.join(did)}", step=header.step)
    show_marks(cli, header.id)
