"""`surehold log --graph`."""

from __future__ import annotations

from collections.abc import Iterator

from surehold.cli import framework as ui
from surehold.cli.commands.see.log import moment_cells, note_words, shown_notes
from surehold.core.records import Header
from surehold.views.forks import draw
from surehold.views.timeline import TimelineEntry


def graph_lines(moments: list[TimelineEntry], *, notes: bool) -> Iterator[object]:
    """A line per checkpoint, beside its lane; with *notes*, its notes below it."""
    by_id = {moment.header.id: moment for moment in moments}
    parents = ((id, one.header.parent) for id, one in by_id.items())
    drawn = list(draw((id, parent if parent in by_id else None) for id, parent in parents))
    wide = max((len(row.prefix) for row in drawn), default=0)
    names = max((len(_address(moment.header)) for moment in moments), default=0)
    for row in drawn:
        if row.id is None:
            yield ui.Line.of(ui.Cell(row.prefix, "magenta"))
            continue
        moment = by_id[row.id]
        header = moment.header
        yield ui.Line.of(
            ui.Cell(f"{row.prefix:<{wide}}  ", "magenta"),
            ui.Cell(f"{_address(header):<{names}}  ", "bold"),
            *moment_cells(moment, 30),
        )
        if notes:
            prefix = row.prefix.replace("*", "|" if header.parent in by_id else " ")
            for note in shown_notes(moment.notes):
                words = f"  {note.kind} {note.state}".rstrip()
                yield ui.Line.of(
                    ui.Cell(f"{prefix:<{wide}}  ", "magenta"),
                    ui.Cell(f"{words}  ", "dim"),
                    note_words(note),
                )


def _address(header: Header) -> str:
    return f"{header.run_id}@{header.step}"
