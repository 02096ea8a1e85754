"""`surehold reject`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import Id, WaitingRun, choose, settle
from surehold.core.policy import validate_answer


@ui.command
def reject(
    cli: ui.Cli,
    run: WaitingRun,
    id: Id = None,
    reason: Annotated[
        str | None, ui.Option(help="Why, for an agent or a fleet that asks for approval.")
    ] = None,
) -> None:
    """Answer no to the question or event that a run waits for."""
    one = choose(cli, run, id, yes_or_no=True)
    hint = f"; surehold answer {one.run_id} VALUE gives another answer"
    if reason is None:
        settle(cli, one, False, hint)
        return
    if not validate_answer(False, one.schema):
        hint = f"; surehold reject {one.run_id} without --reason says false"
    settle(cli, one, {"approved": False, "reason": reason}, hint)
