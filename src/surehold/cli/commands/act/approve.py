"""`surehold approve`."""

from __future__ import annotations

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import Id, WaitingRun, choose, settle


@ui.command
def approve(cli: ui.Cli, run: WaitingRun, id: Id = None) -> None:
    """Answer yes to the question or event that a run waits for."""
    one = choose(cli, run, id, yes_or_no=True)
    settle(cli, one, True, f"; surehold answer {one.run_id} VALUE gives another answer")
