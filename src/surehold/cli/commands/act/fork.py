"""`surehold fork`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.core.records import Header, check_run_id
from surehold.core.values import Nature
from surehold.doors.resume import edited
from surehold.engine.inspect import Origin
from surehold.engine.journal import CheckpointDraft, Loaded
from surehold.engine.managers import CheckpointManager


class Fork(ui.Document, kw_only=True, tag="fork"):
    """``fork``"""

    run_id: str
    checkpoint_id: str
    step: int
    forked_from: Origin
    changed: list[str]


@ui.command
def fork(
    cli: ui.Cli,
    checkpoint: Annotated[str, ui.Argument(metavar="RUN[@N]", help="Where to begin.")],
    set: Annotated[
        list[str] | None,
        ui.Option(metavar="KEY=VALUE", help="Begin with another value; JSON or text."),
    ] = None,
    run_id: Annotated[str | None, ui.Option("--as", metavar="RUN", help="Its run id.")] = None,
) -> None:
    """Start a new run with the state of a checkpoint. The source stays as it is.

    The fork of a graph or an agent inherits no effects: it calls whatever it needs again. That of
    a workflow has the calls that were recorded by then; with other arguments it begins anew.
    """
    edit = ui.read_pairs("--set", set or ())
    if run_id is not None:
        check_run_id(run_id, "--as")
    document = fork_from(cli.manager, cli.finder.checkpoint(checkpoint), edit, run_id)
    origin = document.forked_from
    changed = f", {', '.join(edit)} changed" if edit else ""
    source = f" forked from {origin.run_id}@{origin.step}{changed}"
    cli.give(document, lambda: [ui.Line.of(ui.Cell(document.run_id, "bold"), source)])


def fork_from(
    manager: CheckpointManager, header: Header, edit: dict[str, Any], run_id: str | None = None
) -> Fork:
    """Fork a run from a checkpoint, with other values for some keys."""
    made = manager.fork_from_checkpoint(header.id, run_id, change=_change(edit))
    new = manager.latest(str(made.run_id))
    assert new is not None
    return Fork(
        run_id=new.run_id,
        checkpoint_id=new.checkpoint_id,
        step=new.step,
        forked_from=Origin(header.run_id, header.id, header.step),
        changed=[*edit],
    )


def _change(edit: dict[str, Any]) -> Callable[[Loaded, CheckpointDraft], CheckpointDraft]:
    graph_change = edited(edit)

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        if loaded.door.has_nodes:  # a graph decides its next node again
            return graph_change(loaded, draft)
        values = {**draft.values, **edit}
        natures = {**draft.natures, **dict.fromkeys(edit, Nature.LIVE)}
        return msgspec.structs.replace(draft, values=values, natures=natures)

    return change
