"""`holdfast approve`."""

from __future__ import annotations

from holdfast.cli import framework as ui
from holdfast.cli.commands.act.waiting import Id, WaitingRun, choose, settle


@ui.command
def approve(cli: ui.Cli, run: WaitingRun, id: Id = None) -> None:
    """Answer yes to the question that a run waits for."""
    one = choose(cli, run, id, "question")
    settle(cli, one, True, f"; holdfast answer {one.run_id} VALUE gives another answer")
