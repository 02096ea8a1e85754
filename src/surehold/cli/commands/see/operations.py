"""`surehold log --operations`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from surehold.cli import framework as ui
from surehold.cli.commands.see.log import error_words, note_words
from surehold.views.timeline import TimelineEntry


def operations_table(moments: list[TimelineEntry]) -> Iterator[object]:
    """One line per record."""
    columns = (
        ui.Column("seq", right=True),
        ui.Column("time", gives=True, rank=2, whole=True),
        ui.Column("record"),
        ui.Column("step", right=True),
        ui.Column("where", gives=True, rank=3),
        ui.Column("bytes", right=True, gives=True, rank=1),
        ui.Column("what", gives=True, enough=30),
    )
    yield ui.Table(columns, [_row(moment) for moment in moments])


def _row(moment: TimelineEntry) -> list[object]:
    header = moment.header
    what = error_words(moment) or ui.change_words(moment.changes)
    for note in moment.notes:
        what = " ".join(word for word in (note.state, note_words(note)) if word)
        if note.kind not in ("effect", "question", "answer") and note.facts:
            what = msgspec.json.encode(note.facts).decode()
    return [
        ui.Cell(header.seq, "bold"),
        ui.Cell(ui.when(header.saved_at), "dim"),
        f"{'note:' if header.frame == 'note' else header.frame} {header.kind}",
        header.step,
        "/".join(part for part in (header.scope, header.node) if part),
        ui.Cell(ui.size(header.stored), "dim"),
        what,
    ]
