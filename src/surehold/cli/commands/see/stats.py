"""`surehold stats`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from surehold.cli import framework as ui
from surehold.engine.inspect import Figures, KindStats, Latency, ResumeStats, load_times
from surehold.storage.addresses import place_of
from surehold.storage.base import RunQuery

_LISTED = 10


class Stats(ui.Document, kw_only=True, tag="stats"):
    """``stats``"""

    storage: str
    runs: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int
    file_bytes: int | None
    by_kind: list[KindStats]
    by_run: list[KindStats]
    resumes: list[ResumeStats]
    latency: list[Latency]


@ui.command
def stats(cli: ui.Cli) -> None:
    """Show what is stored and how it went: bytes, resumes, latencies.

    Logical bytes are those of all states written in full; stored bytes are what the journal takes
    for them. Resumes are counted by the leases under which checkpoints were saved. Load times are
    measured now, on the newest runs.
    """
    document = read_stats(cli)
    cli.give(document, lambda: _text(document))


def read_stats(cli: ui.Cli) -> Stats:
    """Figures over all runs of the storage."""
    runs = list(cli.storage.runs(RunQuery()))
    reader = cli.manager.reader
    figures = Figures()
    for run in cli.progress("counting", runs, len(runs)):
        figures.take(reader, run)
    times = {"load, now": load_times(reader, runs), "between checkpoints": figures.steps}
    latency = [Latency.of(name, values) for name, values in times.items() if values]
    by_kind = _by_size(figures.by_kind)
    return Stats(
        storage=cli.address,
        runs=len(runs),
        checkpoints=sum(kind.checkpoints for kind in by_kind),
        logical_bytes=sum(kind.logical_bytes for kind in by_kind),
        stored_bytes=sum(kind.stored_bytes for kind in by_kind),
        file_bytes=_file_bytes(cli),
        by_kind=by_kind,
        by_run=_by_size(figures.by_run),
        resumes=sorted(figures.resumes.values(), key=lambda one: one.cause),
        latency=latency,
    )


def _by_size(known: dict[str, KindStats]) -> list[KindStats]:
    return sorted(known.values(), key=lambda one: -one.stored_bytes)


def _file_bytes(cli: ui.Cli) -> int | None:
    place = place_of(cli.settings.storage.value)
    if place is None:
        return None
    files = place.rglob("*") if place.is_dir() else place.parent.glob(f"{place.name}*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _text(document: Stats) -> Iterator[object]:
    yield ui.Line.of(
        f"{ui.counted(document.runs, 'run')}, {ui.counted(document.checkpoints, 'checkpoint')}: ",
        f"{ui.size(document.logical_bytes)} of states in ",
        f"{ui.size(document.stored_bytes)} of journal",
        f", {ui.size(document.file_bytes)} on disk" if document.file_bytes is not None else "",
    )
    for title, rows in (("kind", document.by_kind), ("run", document.by_run[:_LISTED])):
        yield from _figures(
            (title, "checkpoints", "logical", "stored"),
            [
                [
                    ui.Cell(one.name, "bold"),
                    one.checkpoints,
                    ui.size(one.logical_bytes),
                    ui.size(one.stored_bytes),
                ]
                for one in rows
            ],
        )
    yield from _figures(
        ("resumed after", "tried", "succeeded", "failed"),
        [[one.cause, one.tried, one.succeeded, one.failed] for one in document.resumes],
    )
    yield from _figures(
        ("time", "count", "median", "p95", "max"),
        [
            [one.name, one.count, *(f"{value * 1000:.1f} ms" for value in times)]
            for one in document.latency
            for times in [(one.median, one.p95, one.max)]
        ],
    )


def _figures(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[object]:
    """A table of figures, after an empty line; nothing if there are no rows."""
    if rows:
        first, *rest = titles
        yield ""
        yield ui.Table(
            [ui.Column(first, gives=True), *(ui.Column(one, right=True) for one in rest)], rows
        )
