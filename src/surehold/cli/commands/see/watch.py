"""`surehold watch`."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.see.log import moment_cells
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import UNDER_WAY, status_of_run
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunInfo
from surehold.storage.shared import RunWatch
from surehold.views.timeline import Checkpoint, TimelineEntry, checkpoint_of, entries_from, timeline
from surehold.views.waiting import how_to_resume

_ENDED = {
    "completed": 0,
    "cancelled": ui.exits.INTERRUPTED,
    "interrupted": ui.exits.INTERRUPTED,
    "waiting": ui.exits.WAITING,
    **dict.fromkeys(
        ("max_rounds_reached", "max_cycles_reached", "budget_exhausted"), ui.exits.LIMIT
    ),
}


class Watch(ui.Document, kw_only=True, tag="checkpoint"):
    """``watch``: one document for each checkpoint"""

    checkpoint: Checkpoint


@ui.command
def watch(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")] = "latest",
    interval: Annotated[
        float, ui.Option(help="Seconds between two looks.", min=0.05, max=3600)
    ] = 0.5,
    limit: Annotated[
        int, ui.Option("-n", "--limit", help="Earlier checkpoints to begin with.", min=0)
    ] = 5,
    all: Annotated[bool, ui.Option(help="Show all runs on a terminal, until Ctrl-C.")] = False,
) -> int:
    """Follow a run: print each checkpoint when it is saved, until the run ends.

    A terminal shows one panel instead, which is kept up to date: status, cost, the newest steps,
    and what the run waits for.

    Exits with 0 when it is completed, 20 when it is waiting, 130 when it was interrupted, 1 when
    it failed or its process died.
    """
    manager = cli.manager
    has_panel = cli.for_people and cli.terminal.stdout.isatty()
    if all:
        return _watch_all(cli, interval, has_panel=has_panel)
    found = cli.finder.run(run)
    follow = _follow_on_a_panel if has_panel else _follow
    found, status = follow(cli, found, interval, limit)
    advice = ""
    if status in ("stale", "dead", "failed"):
        advice = f" ({how_to_resume(manager, found, cli.settings.graphs.value)})"
    at = f" at step {found.step}{advice}"
    cli.say(ui.Cell(found.run_id, "bold"), " ", ui.status_cell(status), at)
    return _ENDED.get(status, ui.exits.FAILED)


def _follow(cli: ui.Cli, found: RunInfo, interval: float, limit: int) -> tuple[RunInfo, str]:
    """Print each checkpoint until the run ends."""
    manager = cli.manager
    moments, _ = timeline(manager.reader, manager.retention, found, limit=limit or 1)
    for moment in reversed(moments[:limit]):
        _emit(cli, moment)
    with RunWatch(cli.storage, found.run_id, every=interval) as changes:
        while True:
            status = status_of_run(cli.storage, found)
            now = manager.reader.run(found.run_id)
            if now is None:
                raise NotFoundError(f"run {found.run_id!r} was deleted", run_id=found.run_id)
            if now.seq > found.seq:
                for moment in _since(cli.manager, now, found.seq + 1):
                    _emit(cli, moment)
            found = now
            if status not in UNDER_WAY:
                return now, status
            changes.wait(interval)


def _watch_all(cli: ui.Cli, interval: float, *, has_panel: bool) -> int:
    """Show all runs until Ctrl-C."""
    if not has_panel:
        raise UsageError(
            "--all is for a terminal", hint="surehold runs --json and surehold status --json print"
        )
    from surehold.cli.commands.see.live_panel import live_panel, storage_panel

    with live_panel(cli, lambda: storage_panel(cli.manager)) as live:
        while True:
            time.sleep(interval)
            live.refresh()


def _follow_on_a_panel(cli: ui.Cli, found: RunInfo, interval: float, _: int) -> tuple[RunInfo, str]:
    """Show one run in one place until it ends."""
    from surehold.cli.commands.see.live_panel import live_panel, run_panel

    began = time.monotonic()
    with (
        live_panel(cli, lambda: run_panel(cli.manager, found.run_id, began)) as live,
        RunWatch(cli.storage, found.run_id, every=interval) as changes,
    ):
        while (now := cli.manager.reader.run(found.run_id)) is not None:
            status = status_of_run(cli.storage, now)
            live.refresh()
            if status not in UNDER_WAY:
                return now, status
            changes.wait(interval)
    raise NotFoundError(f"run {found.run_id!r} was deleted", run_id=found.run_id)


def _since(manager: CheckpointManager, run: RunInfo, first: int) -> list[TimelineEntry]:
    newest_first = manager.storage.headers(RecordQuery(run_id=run.run_id, scope=""))
    headers = [*takewhile(lambda header: header.seq >= first, newest_first)]
    moments, _ = entries_from(manager.reader, manager.retention, run, first, headers)
    return moments


def _emit(cli: ui.Cli, moment: TimelineEntry) -> None:
    step = ui.Cell(f"{moment.header.step:>5}  ", "bold")
    line = ui.Line.of(step, *moment_cells(moment, 40))
    cli.stream(Watch(checkpoint=checkpoint_of(moment)), lambda: [line])
