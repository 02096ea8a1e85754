"""`surehold blame`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.cli.commands.see.paths import parts_of, pointer_of, tree_of, value_at
from surehold.engine.inspect import blame as look
from surehold.engine.managers import CheckpointManager
from surehold.errors import NotFoundError
from surehold.storage.base import RunInfo


class Blame(ui.Document, kw_only=True, tag="blame"):
    """``blame``"""

    key: str
    checkpoint: ui.CheckpointInfo
    value: Any


@ui.command
def blame(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")],
    key: Annotated[str, ui.Argument(help="A key, or a path such as plan[0].status.")],
) -> None:
    """Name the step that last wrote a value."""
    document = read_blame(cli.manager, cli.finder.run(run), key)
    cli.give(document, lambda: _text(document))


def read_blame(manager: CheckpointManager, run: RunInfo, key: str) -> Blame:
    """The checkpoint that last wrote the value at *key*."""
    reader = manager.reader
    newest = reader.newest(run)
    found = None
    if newest is not None:
        state = tree_of(reader.load_visible(newest))
        parts = parts_of(key.removeprefix("state."))
        value = value_at(state, parts, run.run_id)
        found = look(reader, run, pointer_of(state, parts), "")
    if found is None:
        raise NotFoundError(
            f"no step of run {run.run_id!r} wrote {key!r}",
            hint=f"surehold show {run.run_id} shows its state",
            run_id=run.run_id,
        )
    header = reader.resolve(found.checkpoint_id, run_id=run.run_id)
    return Blame(key=key, checkpoint=ui.CheckpointInfo.of(header), value=value)


def _text(document: Blame) -> Iterator[object]:
    info = document.checkpoint
    yield ui.Line.of(
        ui.Cell(f"{info.run_id}@{info.step}", "bold"),
        f" ({info.node})" if info.node else "",
        ui.Cell(f"  {ui.clock(info.saved_at)}  ", "dim"),
        ui.Cell(document.key, "blue"),
        f" = {ui.cut(msgspec.json.encode(document.value).decode(), 200)}",
    )
