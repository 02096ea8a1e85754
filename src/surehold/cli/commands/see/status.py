"""`surehold status`."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from surehold.cli import framework as ui
from surehold.core.records import Header
from surehold.engine.inspect import status_of_run
from surehold.engine.repair import verify_missing
from surehold.engine.runs import pending
from surehold.errors import DataError
from surehold.storage.addresses import place_of
from surehold.storage.base import Leasing, RecordQuery, RunInfo, RunQuery, is_live

_LITTLE = 100 << 20
_LITTLE_SHARE = 0.01
_RECENT = timedelta(days=1)
_LOOPING = 3
"""Resumes in a row that saved nothing, after which a run is said to loop."""
_GONE = {"stale": "its process is gone", "dead": "its workers died, and it is a dead letter"}


class Problem(msgspec.Struct):
    """Something that is wrong, and the command that helps."""

    kind: str
    run_id: str
    message: str
    help: str


class Status(ui.Document, kw_only=True, tag="status"):
    """``status``"""

    healthy: bool
    storage: str
    runs: dict[str, int]
    """The number of runs by status."""
    pending: int
    free_bytes: int | None
    problems: list[Problem]


@ui.command
def status(cli: ui.Cli) -> int:
    """Report anything wrong: stale, failing, looping runs, failed saves, damage.

    Exits with 0 if nothing is wrong, 7 if something is damaged, else 1. Runs that failed, and saves
    that failed with only a warning, are those of the last day. A run loops if three resumes in a
    row ended without a save. A disk that is nearly full is reported as well. Damage is looked for
    in the heads of all runs and the newest checkpoints of those not completed; `surehold verify`
    checks everything.
    """
    document = read_status(cli)
    cli.give(document, lambda: _text(document))
    if any(problem.kind == "damage" for problem in document.problems):
        return ui.exits.DAMAGED
    return 0 if document.healthy else ui.exits.FAILED


def read_status(cli: ui.Cli) -> Status:
    """The health of the storage and its runs."""
    problems: list[Problem] = []
    counts: Counter[str] = Counter()
    waiting = 0
    try:
        for run in cli.storage.runs(RunQuery()):
            counts[_look_at(cli, run, problems)] += 1
        problems += _missed(cli)
        for verdict in verify_missing(cli.manager.reader):
            problems += [_damage(verdict.run_id, text) for text in verdict.problems]
        waiting = len(pending(storage=cli.manager))
    except DataError as error:
        damage = _damage(str(error.facts.get("run_id", "")), error.message)
        problems += [damage] if damage not in problems else []
    free = _free_bytes(cli)
    if free is not None and free[0] < max(_LITTLE, free[1] * _LITTLE_SHARE):
        text = f"only {ui.size(free[0])} are free on the disk"
        problems.append(Problem("disk", "", text, "surehold forget"))
    return Status(
        healthy=not problems,
        storage=cli.address,
        runs=dict(sorted(counts.items())),
        pending=waiting,
        free_bytes=free[0] if free else None,
        problems=problems,
    )


def _look_at(cli: ui.Cli, run: RunInfo, problems: list[Problem]) -> str:
    """A run's status; its problems are added to *problems*."""
    shown = status_of_run(cli.storage, run)
    if shown in _GONE:
        text = f"{_GONE[shown]}; last saved {ui.ago(run.saved_at)}, at step {run.step}"
        problems.append(Problem(shown, run.run_id, text, ui.how_to_resume(cli, run)))
    if run.status == "failed" and run.saved_at > datetime.now(UTC) - _RECENT:
        text = f"it failed {ui.ago(run.saved_at)}, at step {run.step}"
        problems.append(Problem("failed", run.run_id, text, f"surehold show {run.run_id}"))
    # The head of a damaged run is listed without its step.
    if run.status != "completed" or not run.step:
        try:
            newest = cli.manager.reader.newest(run)
            if newest is not None and run.status != "completed":
                problems += _loop(cli, newest)
        except DataError as error:
            problems.append(_damage(run.run_id, error.message))
    return shown


def _loop(cli: ui.Cli, newest: Header) -> Iterator[Problem]:
    storage = cli.storage
    lease = storage.lease_of(newest.run_id) if isinstance(storage, Leasing) else None
    if lease is None or not newest.epoch:
        return
    ended = lease.epoch - is_live(lease, time.time()) - newest.epoch
    if ended >= _LOOPING:
        text = f"{ui.counted(ended, 'resume')} since step {newest.step} ended without a save"
        yield Problem("crash loop", newest.run_id, text, f"surehold log {newest.run_id}")


def _damage(run_id: str, message: str) -> Problem:
    return Problem("damage", run_id, message, f"surehold verify --read-data {run_id}".strip())


def _missed(cli: ui.Cli) -> Iterator[Problem]:
    since = datetime.now(UTC) - _RECENT
    query = RecordQuery(kind="missed", notes=True, since=since, limit=1000)
    counts: Counter[str] = Counter()
    for header in cli.storage.headers(query):
        counts[header.run_id] += header.metadata.get("saves", 1)
    for run_id, count in counts.items():
        text = f"{ui.counted(count, 'save')} failed with only a warning, in the last day"
        yield Problem("failed saves", run_id, text, f"surehold log {run_id}")


def _free_bytes(cli: ui.Cli) -> tuple[int, int] | None:
    """Free and all bytes of the storage's file system."""
    place = place_of(cli.settings.storage.value)
    if place is None:
        return None
    there = place.absolute()
    while not there.exists() and there != Path("/"):
        there = there.parent
    usage = shutil.disk_usage(there)
    return usage.free, usage.total


def _text(document: Status) -> Iterator[object]:
    word = (
        ui.Cell("healthy", "bold green") if document.healthy else ui.Cell("unhealthy", "bold red")
    )
    free = f", {ui.size(document.free_bytes)} free" if document.free_bytes is not None else ""
    yield ui.Line.of(word, ui.Cell(f"  {document.storage}{free}", "dim"))
    cells: list[object] = []
    for name, count in document.runs.items():
        cells += [f"{count} ", ui.status_cell(name), "  "]
    yield ui.Line.of(*cells) if cells else "no runs"
    if document.pending:
        yield ui.Line.of(
            ui.Cell(f"{document.pending} waiting for a person", "cyan"),
            ui.Cell(" (surehold pending)", "dim"),
        )
    yield ui.Table.of(
        document.problems,
        ui.Column("problem", lambda one: ui.Cell(one.kind, "red")),
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=2),
        ui.Column("what helps", lambda one: one.help, gives=True, rank=1),
        ui.Column("what", lambda one: one.message, gives=True, enough=30),
    )
