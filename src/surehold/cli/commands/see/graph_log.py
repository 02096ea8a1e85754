"""`surehold log --graph`."""

from __future__ import annotations

from collections.abc import Iterator

from surehold.cli import framework as ui
from surehold.cli.commands.see.lanes import draw, newest_first
from surehold.cli.commands.see.log import History, moment_cells, note_words, read_log, shown_notes
from surehold.core.records import Header
from surehold.engine.inspect import TimelineEntry, fork_origins
from surehold.engine.managers import CheckpointManager
from surehold.storage.base import RunInfo


def family_of(manager: CheckpointManager, run_id: str) -> list[str]:
    """The run, its origins and all their forks; the oldest ancestor first."""
    origins = fork_origins(manager.storage)
    family = [run_id]
    while (origin := origins.get(family[0])) is not None and origin.run_id not in family:
        family.insert(0, origin.run_id)
    for member in family:
        family += (
            fork
            for fork, origin in reversed(origins.items())
            if origin.run_id == member and fork not in family
        )
    return family


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
