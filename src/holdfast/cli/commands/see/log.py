"""`holdfast log`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.commands.see.documents import Log
from holdfast.cli.framework import (
    Address,
    Argument,
    Cell,
    Checkpoint,
    Cli,
    Column,
    NoteRow,
    Option,
    Table,
    change_words,
    command,
    money,
    rows,
    size,
    value_text,
    when,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Moment, Told
    from holdfast.core.records import Header

__all__ = ["checkpoint_row", "error_cells", "error_words", "log", "mark_words", "moment_cells"]

_SHOWN = 30
_WORDS = 100
"""Characters of an error that a line shows."""
_NOT_TOLD = ("item", "key", "prune", "pin", "tag", "release")
"""Notes that a log without --operations leaves out: what they say is seen otherwise."""


@command
def log(
    cli: Cli,
    run: Annotated[str, Argument(metavar="RUN", help="The run.")] = "latest",
    graph: Annotated[
        bool, Option("--graph", "-g", help="With its forks, in lanes beside it.")
    ] = False,
    operations: Annotated[
        bool, Option("--operations", "-o", help="Every record of the journal.")
    ] = False,
    scope: Annotated[str, Option(help="A nested graph's checkpoints.")] = "",
    limit: Annotated[int, Option("-n", "--limit", help="How many.", min=1)] = _SHOWN,
    all: Annotated[bool, Option("--all", "-a", help="All of them.")] = False,
) -> None:
    """Show what each step of a run changed, the newest first.

    Effects and questions stand below the checkpoint that followed them.
    """
    from holdfast.checkpoint.inspect import standing, timeline

    manager = cli.manager
    found = cli.finder.run(run)
    if graph:
        from holdfast.cli.commands.see.graph_log import show_graph

        show_graph(cli, found, None if all else limit)
        return
    if operations:
        from holdfast.cli.commands.see.graph_log import show_operations

        show_operations(cli, found, None if all else limit)
        return
    moments, after = timeline(
        manager.reader, manager.retention, found, limit=None if all else limit, scope=scope
    )
    document = Log(
        run_id=found.run_id,
        status=standing(cli.storage, found),
        checkpoints=[checkpoint_row(moment) for moment in moments],
        open=[NoteRow.of(told) for told in after],
        more=not all and len(moments) == limit and moments[-1].header.parent is not None,
    )
    cli.give(document, lambda: _text(moments, after))
    if cli.for_people and document.more:
        cli.say(Cell("earlier steps: -n or --all", "dim"))


def checkpoint_row(moment: Moment) -> Checkpoint:
    """A moment as documents hold it."""
    address = Address.of(moment.header)
    fields = {name: getattr(address, name) for name in address.__struct_fields__}
    return Checkpoint(
        **fields,
        pinned=moment.pinned,
        changes=rows(moment.changes),
        notes=[NoteRow.of(told) for told in moment.notes],
        error=moment.error,
        failed_in=moment.failed_in,
    )


def _text(moments: list[Moment], after: tuple[Told, ...]) -> Iterator[object]:
    table: list[list[object]] = [_note_row(told) for told in reversed(after) if _is_told(told)]
    for moment in moments:
        table.append(moment_cells(moment))
        if moment.error:
            words = Cell(error_words(moment), "red")
            table.append(["", "", Cell("  error", "dim"), words, "", ""])
        table += (_note_row(told) for told in reversed(moment.notes) if _is_told(told))
    columns = (
        Column("step", right=True),
        Column("time"),
        Column("node", gives=True),
        Column("what changed", gives=True),
        Column("marks"),
        Column("size", right=True),
    )
    yield Table(columns, table)


def moment_cells(moment: Moment) -> list[object]:
    """The row of a checkpoint."""
    header = moment.header
    return [
        Cell(header.step, "bold"),
        Cell(when(header.saved_at), "dim"),
        header.node or "",
        change_words(moment.changes) or Cell("nothing", "dim"),
        mark_words(header, moment.pinned),
        Cell(size(header.size), "dim"),
    ]


def mark_words(header: Header, pinned: bool) -> Cell:
    """What sets a checkpoint apart: kind, status, pin, tags."""
    words = [header.kind] if header.kind not in ("routine", "final") else []
    words += [header.status] if header.status not in ("running", "interrupted") else []
    words += ["pinned"] if pinned else []
    words += [f"#{tag}" for tag in header.tags]
    style = {"failed": "red", "completed": "green"}.get(header.status, "cyan")
    return Cell(" ".join(words), style)


def error_words(moment: Moment) -> str:
    """What a run failed with, and where, in one line."""
    where = f"in {moment.failed_in}: " if moment.error and moment.failed_in else ""
    text = where + " ".join(moment.error.split())
    return text if len(text) <= _WORDS else text[: _WORDS - 1] + "…"


def error_cells(moment: Moment) -> list[Cell]:
    """The same, to stand behind what else a line says of a checkpoint."""
    return [Cell(f"  {error_words(moment)}", "red")] if moment.error else []


def _is_told(told: Told) -> bool:
    return told.kind not in _NOT_TOLD


def _note_row(told: Told) -> list[object]:
    return ["", "", Cell(f"  {told.kind}", "dim"), _note_words(told), note_mark(told), ""]


def _note_words(told: Told) -> str:
    if told.kind == "effect":
        return _effect_words(told)
    if told.kind in ("question", "answer"):
        return f"{told.id}: {value_text(told.value)}"
    return told.error or (value_text(told.facts) if told.facts else "")


def _effect_words(told: Told) -> str:
    parts = [told.id]
    if told.error:
        parts.append(told.error)
    elif told.state == "done":
        parts.append(value_text(told.value, 40))
    cost = money(told.dollars)
    return " ".join([*parts, f"({cost})"] if cost else parts)


def note_mark(told: Told) -> Cell:
    """An effect's state, in its colour."""
    styles = {"done": "green", "failed": "red", "in doubt": "yellow", "repeat": "yellow"}
    return Cell(told.state, styles.get(told.state, ""))
