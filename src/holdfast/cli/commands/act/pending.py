"""`holdfast pending`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from holdfast.checkpoint.effects import Waiting
from holdfast.cli.commands.act.waiting import effect_choices, pending_in
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Document,
    Table,
    command,
    raw,
    value_text,
    when,
)


class Pending(Document, kw_only=True, tag="pending"):
    """``pending``"""

    items: ClassVar[str] = "pending"
    row: ClassVar[str] = "waiting"
    pending: list[Waiting]


@command
def pending(
    cli: Cli,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only this run.")] = None,
) -> None:
    """List what runs wait for: questions, events, times, and effects in doubt."""
    found = pending_in(cli, run)
    written = [msgspec.structs.replace(one, question=raw(one.question)) for one in found]
    cli.give(Pending(pending=written), lambda: pending_table(found))
    if not cli.for_people:
        return
    if not found:
        cli.say("nothing waits")
    effects = [one for one in found if one.kind == "effect"]
    if effects:
        one = effects[0]
        cli.say(effect_choices(one.run_id) if len(found) == 1 else effect_choices("RUN", "ID"))


def pending_table(found: list[Waiting]) -> Iterator[object]:
    """One line per question or effect."""
    if not found:
        return
    columns = (
        Column("run", gives=True, rank=3),
        Column("id", gives=True, rank=2),
        Column("what"),
        Column("expects", gives=True, rank=1),
        Column("question", gives=True, enough=24),
    )
    rows = [
        [
            Cell(one.run_id, "bold"),
            one.id,
            Cell("effect in doubt", "yellow") if one.kind == "effect" else one.kind,
            value_text(one.schema, 40) if one.schema else "",
            _description(one),
        ]
        for one in found
    ]
    yield Table(columns, rows)


def _description(one: Waiting) -> str:
    if one.kind == "question":
        return value_text(one.question)
    if one.kind == "effect":
        return f"{one.name} at step {one.step}, node {one.node}; key {one.key}"
    until = f"until {when(one.until)}" if one.until is not None else ""
    return f"{one.name} {until}".strip()
