"""`surehold blame`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.views.values import Blame, read_blame


@ui.command
def blame(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")],
    key: Annotated[str, ui.Argument(help="A key, or a path such as plan[0].status.")],
) -> None:
    """Name the step that last wrote a value."""
    document = read_blame(cli.manager, cli.finder.run(run), key)
    cli.give(document, lambda: _text(document))


def _text(document: Blame) -> Iterator[object]:
    info = document.checkpoint
    yield ui.Line.of(
        ui.Cell(f"{info.run_id}@{info.step}", "bold"),
        f" ({info.node})" if info.node else "",
        ui.Cell(f"  {ui.clock(info.saved_at)}  ", "dim"),
        ui.Cell(document.key, "blue"),
        f" = {ui.cut(msgspec.json.encode(document.value).decode(), 200)}",
    )
