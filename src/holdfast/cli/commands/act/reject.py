"""`holdfast reject`."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli import framework as ui
from holdfast.cli.commands.act.waiting import Id, WaitingRun, choose, settle


@ui.command
def reject(
    cli: ui.Cli,
    run: WaitingRun,
    id: Id = None,
    reason: Annotated[
        str | None, ui.Option(help="Why, for an agent or a fleet that asks for approval.")
    ] = None,
) -> None:
    """Answer no to the question that a run waits for."""
    one = choose(cli, run, id, "question")
    if reason is None:
        settle(cli, one, False, f"; holdfast answer {one.run_id} VALUE gives another answer")
    else:
        hint = f"; holdfast reject {one.run_id} without --reason says false"
        settle(cli, one, {"approved": False, "reason": reason}, hint)
