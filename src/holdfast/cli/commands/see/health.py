"""`holdfast status` and `holdfast stats`."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.commands.see.documents import (
    KindStats,
    Latency,
    Problem,
    ResumeStats,
    Stats,
    Status,
)
from holdfast.cli.framework import (
    Cell,
    Cli,
    Column,
    Line,
    Table,
    ago,
    command,
    exits,
    size,
    status_cell,
)
from holdfast.cli.settings import place_of
from holdfast.errors import DataError

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Figures, Sizes
    from holdfast.storage.base import RunInfo

__all__ = ["stats", "status"]

_LITTLE = 100 << 20
_LITTLE_SHARE = 0.01
_RECENT = timedelta(days=1)
_LISTED = 10


@command
def status(cli: Cli) -> int:
    """Tell whether anything is wrong: stale runs, saves that failed, damage, a full disk.

    Exits with 0 if nothing is, with 7 if something is damaged, else with 1. Saves are those of the
    last day that a process only warned of. Damage is looked for in the heads of all runs and the
    newest checkpoints of those not completed; `holdfast verify` looks at everything.
    """
    from holdfast.checkpoint.effects import pending

    problems: list[Problem] = []
    counts: Counter[str] = Counter()
    try:
        for run in _runs(cli):
            counts[_look_at(cli, run, problems)] += 1
        problems += _missed(cli)
        waiting = len(pending(storage=cli.manager))
    except DataError as error:
        waiting = 0
        problems.append(_damage(str(error.facts.get("run_id", "")), error.message))
    free = _free_bytes(cli)
    if free is not None and free[0] < max(_LITTLE, free[1] * _LITTLE_SHARE):
        told = f"only {size(free[0])} are free on the disk"
        problems.append(Problem(kind="disk", run_id="", message=told, help="holdfast forget"))
    document = Status(
        healthy=not problems,
        storage=cli.address,
        runs=dict(sorted(counts.items())),
        pending=waiting,
        free_bytes=free[0] if free else None,
        problems=problems,
    )
    cli.give(document, lambda: _status_text(document))
    if any(problem.kind == "damage" for problem in problems):
        return exits.DAMAGED
    return exits.FAILED if problems else 0


def _runs(cli: Cli) -> Iterator[RunInfo]:
    from holdfast.storage.base import RunQuery

    return iter(cli.storage.runs(RunQuery()))


def _look_at(cli: Cli, run: RunInfo, problems: list[Problem]) -> str:
    """A run's status; what is wrong with it is added to *problems*."""
    from holdfast.checkpoint.inspect import standing

    stands = standing(cli.storage, run)
    if stands == "stale":
        problems.append(
            Problem(
                kind="stale",
                run_id=run.run_id,
                message=f"its process is gone since {ago(run.saved_at)}, at step {run.step}",
                help=f"start its program again, or holdfast resume {run.run_id}",
            )
        )
    if run.status != "completed":
        try:
            cli.manager.reader.newest(run)
        except DataError as error:
            problems.append(_damage(run.run_id, error.message))
    return stands


def _damage(run_id: str, message: str) -> Problem:
    wanted = f"holdfast verify --read-data {run_id}".strip()
    return Problem(kind="damage", run_id=run_id, message=message, help=wanted)


def _missed(cli: Cli) -> Iterator[Problem]:
    from holdfast.storage.base import RecordQuery

    since = datetime.now(UTC) - _RECENT
    query = RecordQuery(kind="missed", notes=True, since=since, limit=1000)
    counts: Counter[str] = Counter()
    for header in cli.storage.headers(query):
        counts[header.run_id] += header.metadata.get("saves", 1)
    for run_id, count in counts.items():
        yield Problem(
            kind="failed saves",
            run_id=run_id,
            message=f"{count} saves failed and were only warned of, in the last day",
            help=f"holdfast log {run_id}",
        )


def _free_bytes(cli: Cli) -> tuple[int, int] | None:
    """Free and all bytes of the file system that the storage is on."""
    place = place_of(cli.settings.storage.value)
    if place is None:
        return None
    there = place.absolute()
    while not there.exists() and there != Path("/"):
        there = there.parent
    usage = shutil.disk_usage(there)
    return usage.free, usage.total


def _status_text(document: Status) -> Iterator[object]:
    word = Cell("healthy", "bold green") if document.healthy else Cell("unhealthy", "bold red")
    free = f", {size(document.free_bytes)} free" if document.free_bytes is not None else ""
    yield Line.of(word, Cell(f"  {document.storage}{free}", "dim"))
    cells: list[object] = []
    for name, count in document.runs.items():
        cells += [f"{count} ", status_cell(name), "  "]
    yield Line.of(*cells) if cells else "no runs"
    if document.pending:
        yield Line.of(
            Cell(f"{document.pending} waiting for a person", "cyan"),
            Cell(" (holdfast pending)", "dim"),
        )
    if document.problems:
        columns = (
            Column("problem"),
            Column("run", gives=True),
            Column("what", gives=True),
            Column("what helps", gives=True),
        )
        yield Table(
            columns,
            [
                [Cell(one.kind, "red"), Cell(one.run_id, "bold"), one.message, one.help]
                for one in document.problems
            ],
        )


@command
def stats(cli: Cli) -> None:
    """Show what is stored and how it went: bytes, resumes, latencies.

    Logical bytes are those of all states written out in full; stored bytes what the journal takes
    for them. Resumes are told by the leases under which checkpoints were saved. Load times are
    measured now, on the newest runs.
    """
    from holdfast.checkpoint.inspect import Figures, load_times, quantiles

    runs = list(_runs(cli))
    reader = cli.manager.reader
    figures = Figures()
    with cli.progress("counting", len(runs)) as advance:
        for run in runs:
            figures.take(reader, run)
            advance()
    times = {"load, now": load_times(reader, runs), "between checkpoints": figures.steps}
    latency = [
        Latency(name=name, count=len(values), median=middle, p95=p95, max=most)
        for name, values in times.items()
        if values
        for middle, p95, most in [quantiles(values)]
    ]
    document = _document(cli, figures, len(runs), latency)
    cli.give(document, lambda: _stats_text(document))


def _document(cli: Cli, figures: Figures, runs: int, latency: list[Latency]) -> Stats:
    total = figures.total
    return Stats(
        storage=cli.address,
        runs=runs,
        checkpoints=total.checkpoints,
        logical_bytes=total.logical,
        stored_bytes=total.stored,
        file_bytes=_file_bytes(cli),
        by_kind=_rows(figures.by_kind),
        by_run=_rows(figures.by_run),
        resumes=[
            ResumeStats(cause=cause, tried=one.tried, succeeded=one.succeeded, failed=one.failed)
            for cause, one in sorted(figures.resumes.items())
        ],
        latency=latency,
    )


def _rows(sizes: dict[str, Sizes]) -> list[KindStats]:
    ordered = sorted(sizes.items(), key=lambda item: -item[1].stored)
    return [
        KindStats(
            name=name,
            checkpoints=one.checkpoints,
            logical_bytes=one.logical,
            stored_bytes=one.stored,
        )
        for name, one in ordered
    ]


def _file_bytes(cli: Cli) -> int | None:
    place = place_of(cli.settings.storage.value)
    if place is None:
        return None
    if place.is_dir():
        return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    files = place.parent.glob(f"{place.name}*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _stats_text(document: Stats) -> Iterator[object]:
    yield Line.of(
        f"{document.runs} runs, {document.checkpoints} checkpoints: "
        f"{size(document.logical_bytes)} of states in {size(document.stored_bytes)} of journal",
        f", {size(document.file_bytes)} on disk" if document.file_bytes is not None else "",
    )
    for title, rows in (("kind", document.by_kind), ("run", document.by_run[:_LISTED])):
        if rows:
            columns = (
                Column(title, gives=True),
                Column("checkpoints", right=True),
                Column("logical", right=True),
                Column("stored", right=True),
            )
            cells = [
                [Cell(one.name, "bold"), one.checkpoints, *map(size, sizes)]
                for one in rows
                for sizes in [(one.logical_bytes, one.stored_bytes)]
            ]
            yield ""
            yield Table(columns, cells)
    yield from _resumes_text(document)
    yield from _latency_text(document)


def _resumes_text(document: Stats) -> Iterator[object]:
    if document.resumes:
        columns = (
            Column("resumed after"),
            Column("tried", right=True),
            Column("succeeded", right=True),
            Column("failed", right=True),
        )
        rows = [[one.cause, one.tried, one.succeeded, one.failed] for one in document.resumes]
        yield ""
        yield Table(columns, rows)


def _latency_text(document: Stats) -> Iterator[object]:
    if document.latency:
        columns = (
            Column("time"),
            Column("count", right=True),
            Column("median", right=True),
            Column("p95", right=True),
            Column("max", right=True),
        )
        rows = [
            [one.name, one.count, *(f"{value * 1000:.1f} ms" for value in times)]
            for one in document.latency
            for times in [(one.median, one.p95, one.max)]
        ]
        yield ""
        yield Table(columns, rows)
