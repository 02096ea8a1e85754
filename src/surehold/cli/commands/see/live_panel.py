"""The panel that `surehold watch` keeps up to date on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from surehold.cli import framework as ui
from surehold.core.plain import plain
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import status_of_run, waiting_now
from surehold.errors import SureholdError
from surehold.storage.base import RunInfo, RunQuery
from surehold.views.band import read_band
from surehold.views.costs import spent
from surehold.views.run import step_words
from surehold.views.timeline import timeline
from surehold.views.words import ago, cut, money, span, step_name

_STEPS = 8
_RUNS = 15
_COLOURS = {
    **{"completed": "green", "running": "cyan", "failed": "red", "dead": "red"},
    **dict.fromkeys(("waiting", "stale", "queued", "interrupted"), "yellow"),
}


@contextmanager
def live_panel(cli: ui.Cli, draw: Callable[[], Panel]) -> Iterator[Live]:
    """Show what *draw* gives, again and again, in the same place."""
    stream = cli.terminal.stdout
    console = Console(file=stream, no_color=not cli.terminal.has_color(stream))
    with Live(get_renderable=draw, console=console, auto_refresh=False) as live:
        yield live


def run_panel(manager: CheckpointManager, run_id: str, began: float) -> Panel:
    """A run: status, step, cost, its newest steps, and what it waits for."""
    run = manager.reader.run(run_id)
    if run is None:
        return Panel(f"run {plain(run_id)} was deleted")
    status = status_of_run(manager.storage, run)
    moments, _ = timeline(manager.reader, manager.retention, run, limit=_STEPS)
    steps = Table.grid(padding=(0, 2))
    for moment in reversed(moments):
        header = moment.header
        steps.add_row(
            f"{header.step}",
            Text(plain(cut(step_name(header), 24)), "bold"),
            f"{header.saved_at.astimezone():%H:%M:%S}",
            Text(plain(cut(moment.error or step_words(moment.changes), 70))),
        )
    return Panel(
        Group(_facts(manager, run, status, began), "", steps, *_waits(manager, run)),
        title=Text(plain(cut(run_id, 60)), "bold"),
        border_style=_COLOURS.get(status, "dim"),
    )


def _facts(manager: CheckpointManager, run: RunInfo, status: str, began: float) -> Text:
    cost = spent(manager.storage, run.run_id)
    age = (datetime.now(UTC) - run.started_at).total_seconds()
    facts = [f"step {run.step}", f"began {span(age)} ago", f"last saved {ago(run.saved_at)}"]
    facts += [f"{cost.tokens:,} tokens", money(cost.dollars)] if cost.tokens else []
    facts.append(f"watched for {span(time.monotonic() - began)}")
    return Text.assemble((status, _COLOURS.get(status, "dim")), "  ", "  ".join(facts))


def _waits(manager: CheckpointManager, run: RunInfo) -> list[Text]:
    try:
        found = waiting_now(manager.reader, run)
    except SureholdError:
        return []
    said = [f"waits: {one.id} {cut(str(one.question or one.name), 80)}" for one in found[:3]]
    return [Text(plain(one), "yellow") for one in said]


def storage_panel(manager: CheckpointManager) -> Panel:
    """Every run: the counts of all, and the newest of them."""
    band = read_band(manager)
    counts = {
        **{"running": band.running, "waiting": band.waiting, "failed": band.failed},
        **{"stale": band.stale, "dead": band.dead, "queued": band.queued},
    }
    words = [
        (f"{count} {name}   ", _COLOURS[name] if count else "dim") for name, count in counts.items()
    ]
    rows = Table.grid(padding=(0, 2))
    for run in manager.storage.runs(RunQuery(limit=_RUNS)):
        status = status_of_run(manager.storage, run)
        rows.add_row(
            Text(plain(cut(run.run_id, 40)), "bold"),
            Text(status, _COLOURS.get(status, "dim")),
            f"step {run.step}",
            Text(plain(cut(run.node or "", 24))),
            ago(run.saved_at),
        )
    today = (f"{money(band.today) or '$0'} today", "bold")
    return Panel(Group(Text.assemble(*words, today), "", rows), title="surehold")
