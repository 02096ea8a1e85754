"""`surehold log --operations`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from surehold.cli import framework as ui
from surehold.cli.commands.see.log import History, error_words, note_words, with_settled
from surehold.engine.inspect import (
    TimelineEntry,
    changes_in,
    damaged_entry,
    failure_of,
    status_of_run,
    view_note,
)
from surehold.engine.managers import CheckpointManager
from surehold.errors import CorruptError
from surehold.storage.base import RecordQuery, RunInfo


def read_operations(
    manager: CheckpointManager, run: RunInfo, *, scope: str | None, limit: int | None
) -> History:
    """The newest *limit* records of a run's journal, each as an entry of its own."""
    most = None if limit is None else limit + 1
    query = RecordQuery(run_id=run.run_id, scope=scope, notes=True, limit=most)
    headers = manager.reader.readable_headers(run, query)
    shown = {header.seq: header for header in headers[:limit]}
    marks = manager.retention.readable_marks(run)
    status = status_of_run(manager.storage, run)
    settled: set[tuple[str, str]] = set()
    moments = []
    for record in reversed([*manager.reader.readable(run.run_id, min(shown, default=1), run.seq)]):
        if isinstance(record, CorruptError):
            if (header := shown.get(record.facts.get("seq", 0))) is not None:
                moments.append(damaged_entry(header, record))
            continue
        if record.header.seq not in shown:
            continue
        note = record.header.frame == "note"
        error, failed_in = ("", "") if note else failure_of(manager.reader, record)
        notes = (view_note(manager.reader, record),) if note else ()
        moments.append(
            TimelineEntry(
                header=marks.tagged(record.header),
                pinned=record.header.seq in marks.pinned,
                changes=() if note else changes_in(manager.reader, record),
                notes=with_settled(notes, settled, running=status == "running"),
                error=error,
                failed_in=failed_in,
            )
        )
    return History(
        run_id=run.run_id, status=status, moments=moments, more=len(headers) > len(shown)
    )


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
