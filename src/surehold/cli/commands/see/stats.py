"""`surehold stats`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from surehold.cli import framework as ui
from surehold.storage.base import RunInfo
from surehold.views.stats import (
    Stats,
    read_stats,
)

_LISTED = 10
_RUNS = 100


@ui.command
def stats(cli: ui.Cli, limit: ui.Limit = _RUNS, all: ui.All = False) -> None:
    """Show what is stored and how it went: bytes, resumes, latencies.

    The figures are of the newest runs: 100, unless -n or --all chooses.

    Logical bytes are those of all states written in full; stored bytes are what the journal takes
    for them. Resumes are counted by the leases under which checkpoints were saved. Load times are
    measured now, on the newest runs.
    """

    def progress(runs: list[RunInfo]) -> Iterable[RunInfo]:
        return cli.progress("counting", runs, len(runs))

    most = None if all else limit
    document = read_stats(cli.manager, cli.settings.storage.value, progress, most)
    cli.give(document, lambda: _text(document))


def _text(document: Stats) -> Iterator[object]:
    newest = f"of {document.runs:,} the newest " if document.counted < document.runs else ""
    yield ui.Line.of(
        f"{newest}{ui.counted(document.counted, 'run')}, ",
        f"{ui.counted(document.checkpoints, 'checkpoint')}: ",
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
