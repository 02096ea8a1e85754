"""A run as it happened: checkpoints with their changes, and notes between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from surehold.core.records import Header, Record
from surehold.engine.journal import Change, Reader, changes_in, read_body
from surehold.engine.managers import CheckpointManager
from surehold.engine.retention import Marks, RetentionManager
from surehold.engine.runs import NoteView, status_of_run, view_note
from surehold.engine.runs.effects import failure_in
from surehold.errors import CorruptError
from surehold.storage.base import RecordQuery, RunInfo
from surehold.views.documents import ChangeRow, CheckpointInfo, Document, Rows, change_rows, raw
from surehold.views.forks import family_of, newest_first

SHOWN = 30
"""Checkpoints that a log shows unless it is asked for more."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, what it changed, and the notes since the checkpoint before it."""

    header: Header
    pinned: bool
    changes: tuple[Change, ...]
    notes: tuple[NoteView, ...]
    error: str = ""
    """The error its run failed with."""
    failed_in: str = ""
    """The node that its run failed in."""
    damaged: bool = False
    """True if only its header can be read; `error` says why."""


def timeline(
    reader: Reader,
    retention: RetentionManager,
    run: RunInfo,
    *,
    limit: int | None = None,
    scope: str = "",
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """The newest *limit* checkpoints of a run's scope, and the notes after them.

    Newest first.
    """
    more = None if limit is None else limit + 1
    query = RecordQuery(run_id=run.run_id, scope=scope, limit=more)
    headers = reader.readable_headers(run, query)
    first = headers[limit].seq + 1 if limit is not None and len(headers) > limit else 1
    moments, notes = entries_from(reader, retention, run, first, headers[:limit])
    return moments[::-1], notes


def entries_from(
    reader: Reader, retention: RetentionManager, run: RunInfo, first: int, headers: Iterable[Header]
) -> tuple[list[TimelineEntry], tuple[NoteView, ...]]:
    """These checkpoints, oldest first, with their notes, and the notes after them.

    Notes from the record *first* on count.
    """
    shown = {header.seq: header for header in headers}
    scopes = {header.scope for header in shown.values()}
    marks = retention.readable_marks(run)
    moments: list[TimelineEntry] = []
    notes: list[NoteView] = []
    for record in reader.readable(run.run_id, first, run.seq):
        if isinstance(record, CorruptError):
            header = shown.get(record.facts.get("seq", 0))
            if header is not None:
                moments.append(damaged_entry(marks.tagged(header), record, tuple(notes)))
                notes = []
            else:
                notes.append(_damaged_note(record))
            continue
        header = record.header
        if header.frame == "note":
            notes.append(view_note(reader, record))
        elif header.seq in shown:
            moments.append(_entry(reader, marks, shown[header.seq], record, tuple(notes)))
            notes = []
        elif header.scope in scopes:  # a checkpoint that was dropped, and its step with it
            notes = []
    return moments, tuple(notes)


def _entry(
    reader: Reader, marks: Marks, header: Header, record: Record, notes: tuple[NoteView, ...]
) -> TimelineEntry:
    tagged = marks.tagged(header)
    try:
        error, failed_in = failure_of(reader, record)
        changes = changes_in(reader, record)
    except CorruptError as damage:  # of the note that keeps its key
        return damaged_entry(tagged, damage, notes)
    return TimelineEntry(
        header=tagged,
        pinned=header.seq in marks.pinned,
        changes=changes,
        notes=notes,
        error=error,
        failed_in=failed_in,
    )


def _damaged_note(error: CorruptError) -> NoteView:
    seq = error.facts.get("seq", 0)
    return NoteView(seq=seq, kind="damaged", scope="", step=0, node=None, error=error.message)


def damaged_entry(
    header: Header, error: CorruptError, notes: tuple[NoteView, ...] = ()
) -> TimelineEntry:
    """The entry of a record of which only the header can be read."""
    told = f"damaged: {error.message}"
    return TimelineEntry(
        header=header, pinned=False, changes=(), notes=notes, error=told, damaged=True
    )


def failure_of(reader: Reader, record: Record) -> tuple[str, str]:
    """Return the error a run failed with at a checkpoint, and the node."""
    header = record.header
    if header.status in ("running", "completed"):
        return "", ""
    extra = bytes(read_body(reader.sealer.open(record), header).extra)
    return failure_in(header, extra), failed_node(header, extra)


def failed_node(header: Header, extra: bytes) -> str:
    """The node that a graph failed in; empty if there is none.

    It is the node to execute next, which the failed checkpoint keeps beside the state.
    """
    if header.status != "failed" or not extra:
        return ""
    told: Any = msgspec.json.decode(extra)
    now = told.get("now") if isinstance(told, dict) else None
    node = now.get("next") if isinstance(now, dict) else None
    return node if isinstance(node, str) else ""


class Checkpoint(CheckpointInfo, frozen=True, kw_only=True):
    """A checkpoint with its changes and the notes before it."""

    pinned: bool
    changes: list[ChangeRow]
    notes: list[NoteView]
    error: str = ""
    """The class and text of the error that its run failed with."""
    failed_in: str = ""
    """The node that its run failed in; `node` is the last one that was executed."""


def checkpoint_of(moment: TimelineEntry) -> Checkpoint:
    """A timeline entry as documents hold it."""
    return Checkpoint.of(
        moment.header,
        pinned=moment.pinned,
        changes=change_rows(moment.changes),
        notes=[note_of(note) for note in moment.notes],
        error=moment.error,
        failed_in=moment.failed_in,
    )


def note_of(note: NoteView) -> NoteView:
    """A note whose value is written as the journal writes it."""
    return msgspec.structs.replace(note, value=raw(note.value))


class Log(Document, kw_only=True, tag="log"):
    run_id: str
    status: str
    checkpoints: Annotated[list[Checkpoint], Rows("checkpoint")]
    open: list[NoteView]
    """Notes after the newest checkpoint."""
    more: bool


class History(msgspec.Struct, kw_only=True):
    """Entries of a log, newest first, as `log` and its forms read them."""

    run_id: str
    status: str
    moments: list[TimelineEntry]
    after: tuple[NoteView, ...] = ()
    more: bool = False

    def document(self) -> Log:
        """The entries as JSON."""
        return Log(
            run_id=self.run_id,
            status=self.status,
            checkpoints=[checkpoint_of(moment) for moment in self.moments],
            open=[note_of(note) for note in self.after],
            more=self.more,
        )


def read_log(
    manager: CheckpointManager, run: RunInfo, *, scope: str = "", limit: int | None = SHOWN
) -> History:
    """The newest *limit* checkpoints of a scope of the run, with their notes."""
    moments, after = timeline(manager.reader, manager.retention, run, limit=limit, scope=scope)
    status = status_of_run(manager.storage, run)
    settled: set[tuple[str, str]] = set()
    after = with_settled(after, settled, running=status == "running")
    moments = [
        msgspec.structs.replace(moment, notes=with_settled(moment.notes, settled))
        for moment in moments
    ]
    return History(
        run_id=run.run_id,
        status=status,
        moments=moments,
        after=after,
        more=limit is not None and len(moments) == limit and moments[-1].header.parent is not None,
    )


def record_after(manager: CheckpointManager, run: RunInfo, seq: int) -> str | None:
    """The id of the next record after *seq*; None at the head."""
    for record in manager.reader.records(run.run_id, seq + 1, run.seq):
        return record.header.id
    return None


def with_settled(
    notes: Iterable[NoteView], settled: set[tuple[str, str]], *, running: bool = False
) -> tuple[NoteView, ...]:
    """Notes in which an effect is in doubt only if no later note settles it.

    *settled* holds the effects that later notes settle, and is added to; notes must be passed
    newest first. While the run is *running*, an open effect is in progress, not in doubt.
    """
    made: list[NoteView] = []
    for note in reversed([*notes]):
        key = (note.scope, note.id)
        if note.kind == "effect":
            if note.state == "in doubt" and (running or key in settled):
                made.append(msgspec.structs.replace(note, state="begun"))
                continue
            if note.state in ("done", "failed"):
                settled.add(key)
        made.append(note)
    return tuple(reversed(made))


def read_family(
    manager: CheckpointManager, run: RunInfo, *, scope: str, limit: int | None
) -> History:
    """The newest *limit* checkpoints of a run and its forks, children before parents."""
    histories = [
        read_log(manager, info, scope=scope, limit=limit)
        for member in family_of(manager, run.run_id)
        if (info := manager.reader.run(member)) is not None
    ]
    moments = {one.header.id: one for history in histories for one in history.moments}
    ordered = newest_first(
        {
            id: (moment.header.parent, moment.header.saved_at.timestamp())
            for id, moment in moments.items()
        }
    )
    return History(
        run_id=run.run_id,
        status=next(one.status for one in histories if one.run_id == run.run_id),
        moments=[moments[id] for id, _ in ordered[:limit]],
        more=limit is not None and len(ordered) > limit,
    )


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
