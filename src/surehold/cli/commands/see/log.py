"""`surehold log`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.core.records import Header
from surehold.engine.runs import NoteView
from surehold.views.forks import draw
from surehold.views.run import answer_of, call_words, step_words
from surehold.views.timeline import (
    SHOWN,
    History,
    TimelineEntry,
    read_family,
    read_log,
    read_operations,
)

_WORDS = 100
"""Characters of an error that a line shows."""
_LEFT_OUT = ("item", "key", "prune", "pin", "tag", "release", "writes")
"""Kinds of notes that only --operations shows: other columns or commands show their effect."""


@ui.command
def log(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")] = "latest",
    graph: Annotated[
        bool, ui.Option("--graph", "-g", help="With its forks, in lanes beside it.")
    ] = False,
    operations: Annotated[
        bool, ui.Option("--operations", "-o", help="Every record of the journal.")
    ] = False,
    scope: Annotated[
        str | None, ui.Option(help="Only the checkpoints of this nested graph.")
    ] = None,
    limit: ui.Limit = SHOWN,
    all: ui.All = False,
) -> None:
    """Show what each step of a run changed, the newest first.

    Effects and questions stand below the checkpoint that followed them.
    """
    found, most = cli.finder.run(run), None if all else limit
    if graph:
        history = read_family(cli.manager, found, scope=scope or "", limit=most)
        cli.give(history.document(), lambda: _graph_lines(history, notes=operations))
    elif operations:
        history = read_operations(cli.manager, found, scope=scope, limit=most)
        cli.give(history.document(), lambda: _records(history.moments))
    else:
        history = read_log(cli.manager, found, scope=scope or "", limit=most)
        cli.give(history.document(), lambda: _table(history))
    if cli.for_people and history.more:
        cli.say(ui.Cell("there are earlier ones: -n or --all", "dim"))


def _table(history: History) -> Iterator[object]:
    rows = [_note_row(note) for note in _shown_notes(history.after)]
    for moment in history.moments:
        rows.append(_row(moment))
        if moment.error:
            rows.append(
                ["", "", ui.Cell("  error", "dim"), "", "", ui.Cell(_error_words(moment), "red")]
            )
        rows += map(_note_row, _shown_notes(moment.notes))
    columns = (
        ui.Column("step", right=True),
        ui.Column("time", gives=True, rank=3, whole=True),
        ui.Column("node", gives=True, rank=4),
        ui.Column("marks", gives=True, rank=1),
        ui.Column("size", right=True, gives=True, rank=2),
        ui.Column("what changed", gives=True, enough=28),
    )
    yield ui.Table(columns, rows)


def _row(moment: TimelineEntry) -> list[object]:
    header = moment.header
    return [
        ui.Cell(header.step, "bold"),
        ui.Cell(ui.when(header.saved_at), "dim"),
        header.node or "",
        _mark_words(header, moment.pinned),
        ui.Cell(ui.size(header.size), "dim"),
        step_words(moment.changes, whole=True)
        or ui.Cell("cannot be read" if moment.damaged else "nothing", "dim"),
    ]


def _mark_words(header: Header, pinned: bool) -> ui.Cell:
    """A checkpoint's kind and status where they are unusual, its pin and its tags."""
    plain = ("routine", "final", "interrupt" if header.status == "waiting" else "")
    words = [header.kind] if header.kind not in plain else []
    words += [header.status] if header.status not in ("running", "interrupted") else []
    words += ["pinned"] if pinned else []
    words += [f"#{tag}" for tag in header.tags]
    style = {"failed": "red", "completed": "green"}.get(header.status, "cyan")
    return ui.Cell(" ".join(words), style)


def moment_cells(moment: TimelineEntry, width: int) -> list[object]:
    """A line about a checkpoint, after its name; changes in *width* characters."""
    header = moment.header
    marks = _mark_words(header, moment.pinned)
    return [
        ui.Cell(f"{ui.when(header.saved_at)}  ", "dim"),
        f"{header.node or '':<12}  ",
        marks,
        "  " if marks.text else "",
        step_words(moment.changes, width, whole=True),
        *([ui.Cell(f"  {_error_words(moment)}", "red")] if moment.error else []),
    ]


def _error_words(moment: TimelineEntry) -> str:
    """The error that a run failed with, and its node, in one line."""
    where = f"in {moment.failed_in}: " if moment.error and moment.failed_in else ""
    return ui.cut(where + " ".join(moment.error.split()), _WORDS)


def _shown_notes(notes: Iterable[NoteView]) -> Iterator[NoteView]:
    """The notes that a log shows, newest first."""
    for note in reversed([*notes]):
        if note.kind not in _LEFT_OUT and note.state != "begun":
            yield note


def _note_row(note: NoteView) -> list[object]:
    styles = {"done": "green", "failed": "red", "in doubt": "yellow", "repeat": "yellow"}
    mark = ui.Cell(note.state, styles.get(note.state, ""))
    return ["", "", ui.Cell(f"  {note.kind}", "dim"), mark, "", _note_words(note)]


def _note_words(note: NoteView) -> str:
    """A note in one line."""
    if note.kind in ("question", "answer"):
        return f"{note.id}: {ui.value_text(note.value)}"
    if note.kind == "timer" and not note.error:
        return f"{note.id} until {ui.when(note.value)}" if note.value is not None else note.id
    if note.kind != "effect":
        return note.error or (ui.value_text(note.facts) if note.facts else "")
    recorded = answer_of(note.value) is not None
    parts = [note.name if recorded else note.id]
    if note.error:
        parts.append(note.error)
    elif note.state == "done":
        parts.append(call_words(note, 40))
    cost = ui.money(note.dollars)
    return " ".join([*parts, f"({cost})"] if cost else parts)


def _graph_lines(history: History, *, notes: bool) -> Iterator[object]:
    """A line per checkpoint, beside its lane; with *notes*, its notes below it.

    A lane whose checkpoint is not listed goes on to the end, so that no other seems to be its
    origin.
    """
    moments = history.moments
    by_id = {moment.header.id: moment for moment in moments}
    parents = ((id, one.header.parent) for id, one in by_id.items())
    drawn = list(
        draw((id, parent if parent in by_id or history.more else None) for id, parent in parents)
    )
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
            for note in _shown_notes(moment.notes):
                words = f"  {note.kind} {note.state}".rstrip()
                yield ui.Line.of(
                    ui.Cell(f"{prefix:<{wide}}  ", "magenta"),
                    ui.Cell(f"{words}  ", "dim"),
                    _note_words(note),
                )


def _address(header: Header) -> str:
    return f"{header.run_id}@{header.step}"


def _records(moments: list[TimelineEntry]) -> Iterator[object]:
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
    yield ui.Table(columns, [_record_row(moment) for moment in moments])


def _record_row(moment: TimelineEntry) -> list[object]:
    header = moment.header
    what = _error_words(moment) or step_words(moment.changes, whole=True)
    for note in moment.notes:
        what = " ".join(word for word in (note.state, _note_words(note)) if word)
        if note.kind not in ("effect", "question", "answer") and note.facts:
            what = msgspec.json.encode(note.facts).decode()
        elif by := note.facts.get("by"):
            what = f"{what} by {by}"
    return [
        ui.Cell(header.seq, "bold"),
        ui.Cell(ui.when(header.saved_at), "dim"),
        f"{'note:' if header.frame == 'note' else header.frame} {header.kind}",
        header.step,
        "/".join(part for part in (header.scope, header.node) if part),
        ui.Cell(ui.size(header.stored), "dim"),
        what,
    ]
