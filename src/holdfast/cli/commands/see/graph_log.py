"""`holdfast log --graph` and `holdfast log --operations`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.commands.see.documents import Log
from holdfast.cli.commands.see.lanes import draw, newest_first
from holdfast.cli.commands.see.log import checkpoint_row, error_cells, error_words, mark_words
from holdfast.cli.framework import (
    Cell,
    Cli,
    Column,
    Line,
    Table,
    change_words,
    size,
    value_text,
    when,
)
from holdfast.storage.base import RecordQuery

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Moment
    from holdfast.core.records import Header
    from holdfast.storage.base import RunInfo

__all__ = ["family_of", "show_graph", "show_operations"]


def family_of(cli: Cli, run_id: str) -> list[str]:
    """The run, its forks, and theirs; and what it was forked from, and that from."""
    from holdfast.checkpoint.inspect import fork_origins

    origins = fork_origins(cli.storage)
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


def show_graph(cli: Cli, run: RunInfo, limit: int | None) -> None:
    """A run and its forks in lanes."""
    from holdfast.checkpoint.inspect import timeline

    manager = cli.manager
    moments: dict[str, Moment] = {}
    for member in family_of(cli, run.run_id):
        info = manager.reader.run(member)
        if info is not None:
            found, _ = timeline(manager.reader, manager.retention, info, limit=limit)
            moments |= {moment.header.id: moment for moment in found}
    nodes = {
        id: (moment.header.parent, moment.header.saved_at.timestamp())
        for id, moment in moments.items()
    }
    ordered = newest_first(nodes)
    more = limit is not None and len(ordered) > limit
    ordered = ordered[:limit]
    document = Log(
        run_id=run.run_id,
        status=run.status,
        checkpoints=[checkpoint_row(moments[id]) for id, _ in ordered],
        open=[],
        more=more,
    )
    cli.give(document, lambda: _lines(moments, ordered))
    if more and cli.for_people:
        cli.say(Cell("earlier steps: -n or --all", "dim"))


def _lines(moments: dict[str, Moment], ordered: list[tuple[str, str | None]]) -> Iterator[object]:
    drawn = list(draw(ordered))
    wide = max((len(row.prefix) for row in drawn), default=0)
    names = max((len(_address(moments[id].header)) for id, _ in ordered), default=0)
    for row in drawn:
        prefix = Cell(f"{row.prefix:<{wide}}  ", "magenta")
        if row.id is None:
            yield Line.of(Cell(row.prefix, "magenta"))
            continue
        moment = moments[row.id]
        header = moment.header
        marks = mark_words(header, moment.pinned)
        yield Line.of(
            prefix,
            Cell(f"{_address(header):<{names}}  ", "bold"),
            Cell(f"{when(header.saved_at)}  ", "dim"),
            f"{header.node or '':<12}  ",
            marks,
            "  " if marks.text else "",
            change_words(moment.changes, 30),
            *error_cells(moment),
        )


def _address(header: Header) -> str:
    return f"{header.run_id}@{header.step}"


def show_operations(cli: Cli, run: RunInfo, limit: int | None) -> None:
    """The records of a journal as they stand in it."""
    from holdfast.checkpoint.inspect import Moment, changes_in, failure_told, told_of

    manager = cli.manager
    query = RecordQuery(run_id=run.run_id, notes=True, limit=None if limit is None else limit + 1)
    headers = list(manager.storage.headers(query))
    more = limit is not None and len(headers) > limit
    shown = {header.seq: header for header in headers[:limit]}
    marks = manager.retention.marks(run.run_id)
    records = [
        record
        for record in manager.reader.records(run.run_id, min(shown, default=1), run.seq)
        if record.header.seq in shown
    ]
    moments = []
    for record in reversed(records):
        note = record.header.frame == "note"
        error, failed_in = ("", "") if note else failure_told(manager.reader, record)
        moment = Moment(
            header=marks.tagged(record.header),
            pinned=record.header.seq in marks.pinned,
            changes=() if note else changes_in(manager.reader, record),
            notes=(told_of(manager.reader, record),) if note else (),
            error=error,
            failed_in=failed_in,
        )
        moments.append(moment)
    document = Log(
        run_id=run.run_id,
        status=run.status,
        checkpoints=[checkpoint_row(moment) for moment in moments],
        open=[],
        more=more,
    )
    cli.give(document, lambda: _operations(moments))
    if more and cli.for_people:
        cli.say(Cell("earlier records: -n or --all", "dim"))


def _operations(moments: list[Moment]) -> Iterator[object]:
    columns = (
        Column("seq", right=True),
        Column("time"),
        Column("record"),
        Column("step", right=True),
        Column("where", gives=True),
        Column("what", gives=True),
        Column("bytes", right=True),
    )
    yield Table(columns, [_record_row(moment) for moment in moments])


def _record_row(moment: Moment) -> list[object]:
    header = moment.header
    where = "/".join(part for part in (header.scope, header.node) if part)
    what = error_words(moment) or change_words(moment.changes)
    for told in moment.notes:
        words = [told.id, told.state, told.error]
        if told.kind in ("effect", "question", "answer"):
            words.append(value_text(told.value))
        elif told.facts:
            words.append(msgspec.json.encode(told.facts).decode())
        what = " ".join(word for word in words if word)
    frame = header.frame if header.frame != "note" else "note:"
    return [
        Cell(header.seq, "bold"),
        Cell(when(header.saved_at), "dim"),
        f"{frame} {header.kind}",
        header.step,
        where,
        what,
        Cell(size(header.stored), "dim"),
    ]
