"""`surehold pin`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui

Place = Annotated[str, ui.Argument(metavar="RUN[@N]", help="The checkpoint.")]


class Marked(ui.Document, kw_only=True, tag="marked"):
    """``tag`` and ``pin``"""

    run_id: str
    checkpoint_id: str
    step: int
    tags: tuple[str, ...]
    pinned: bool


@ui.command
def pin(
    cli: ui.Cli,
    checkpoint: Place,
    remove: Annotated[bool, ui.Option("--remove", "-r", help="Unpin it.")] = False,
) -> None:
    """Keep a checkpoint whatever the retention rules say."""
    header = cli.finder.checkpoint(checkpoint)
    (cli.manager.unpin if remove else cli.manager.pin)(header.id)
    did = f"{'unpinned' if remove else 'pinned'} step {header.step}"
    cli.note(header.run_id, did, step=header.step)
    show_marks(cli, header.id)


def show_marks(cli: ui.Cli, checkpoint_id: str) -> None:
    """Print the pin and the tags of a checkpoint."""
    header = cli.finder.checkpoint(checkpoint_id)
    document = Marked(
        run_id=header.run_id,
        checkpoint_id=header.id,
        step=header.step,
        tags=header.tags,
        pinned=header.seq in cli.manager.retention.marks(header.run_id).pinned,
    )
    marks = [*(["pinned"] if document.pinned else []), *(f"#{tag}" for tag in header.tags)]
    name = ui.Cell(f"{header.run_id}@{header.step}", "bold")
    line = ui.Line.of(name, " ", ui.Cell(" ".join(marks) or "no marks", "cyan"))
    cli.give(document, lambda: [line])
