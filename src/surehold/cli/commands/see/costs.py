"""`surehold costs`."""

from __future__ import annotations

from collections.abc import Iterator

from surehold.cli import framework as ui
from surehold.views.costs import CostReport, read_costs

_CALLS = 5000
_LISTED = 10


@ui.command
def costs(cli: ui.Cli, limit: ui.Limit = _CALLS) -> None:
    """Show what was spent, over all runs: by day, name, node, model and run.

    The figures are of the newest recorded calls: 5,000, unless -n chooses. A call has a cost if
    its `usage=` says what it was; the calls of models do.
    """
    document = read_costs(cli.manager, limit)
    cli.give(document, lambda: _text(document))


def _text(document: CostReport) -> Iterator[object]:
    yield ui.Line.of(
        ui.Cell(ui.money(document.dollars) or "$0", "bold"),
        f" in {ui.counted(document.calls, 'call')}, {ui.money(document.today) or '$0'} today, ",
        f"{document.tokens - document.output_tokens:,} tokens in, {document.output_tokens:,} out",
        f", {ui.money(document.saved) or '$0'} not paid again in"
        f" {ui.counted(document.resumes, 'resume')}"
        if document.resumes
        else "",
        f", since {document.since:%Y-%m-%d %H:%M} UTC" if document.since is not None else "",
    )
    for kind in dict.fromkeys(row.by for row in document.rows):
        rows = [row for row in document.rows if row.by == kind][:_LISTED]
        yield ""
        yield ui.Table(
            [
                ui.Column(kind, gives=True),
                *(ui.Column(title, right=True) for title in ("cost", "calls", "in", "out")),
            ],
            [
                [
                    ui.Cell(row.key, "bold"),
                    ui.money(row.dollars) or "$0",
                    row.calls,
                    f"{row.tokens - row.output_tokens:,}",
                    f"{row.output_tokens:,}",
                ]
                for row in rows
            ],
        )
