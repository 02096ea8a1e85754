"""`surehold pending`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NoReturn

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import effect_choices, pending_in
from surehold.engine.runs import Waiting
from surehold.storage.shared import RunWatch
from surehold.views.waiting import Pending

_SHOWN = 50
_EVERY = 0.25
_AT_LEAST = 5.0
"""Seconds after which it looks even if no change was noticed."""


@ui.command
def pending(
    cli: ui.Cli,
    run: Annotated[str | None, ui.Argument(help="Only this run.")] = None,
    limit: ui.Limit = _SHOWN,
    all: ui.All = False,
    follow: Annotated[
        bool, ui.Option(help="Print the list again at each change, until Ctrl-C.")
    ] = False,
) -> None:
    """List what runs wait for: questions, events, times, and effects in doubt.

    The newest runs come first. A run that a worker has not taken yet waits for none of these.
    """
    if follow:
        _follow(cli, run)
    found = pending_in(cli, run, None if all else limit + 1)
    more = not all and len(found) > limit
    found = found[:limit] if more else found
    cli.give(Pending.of(found), lambda: pending_table(found))
    if not cli.for_people:
        return
    if more:
        cli.say(ui.Cell("there are more: -n and --all choose", "dim"))
    if not found:
        cli.say("nothing waits")
    effects = [one for one in found if one.kind == "effect"]
    if effects:
        one = effects[0]
        cli.say(effect_choices(one.run_id) if len(found) == 1 else effect_choices("RUN", "ID"))


def _follow(cli: ui.Cli, run: str | None) -> NoReturn:
    """Print what is waited for, and again whenever that has changed."""
    shown: list[Waiting] | None = None
    with RunWatch(cli.storage, every=_EVERY) as changes:
        while True:
            found = pending_in(cli, run)
            if found != shown:
                shown = found
                cli.stream(Pending.of(found), partial(_news, found))
            changes.wait(_AT_LEAST)


def _news(found: list[Waiting]) -> Iterator[object]:
    count = f"{len(found)} waiting" if found else "nothing waits"
    yield ui.Line.of(ui.Cell(f"{datetime.now(UTC):%H:%M:%S} UTC", "dim"), f"  {count}")
    yield from pending_table(found)


def pending_table(found: list[Waiting]) -> Iterator[object]:
    """One line per question or effect."""
    in_doubt = ui.Cell("effect in doubt", "yellow")
    yield ui.Table.of(
        found,
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=3),
        ui.Column("id", gives=True, rank=2),
        ui.Column("what", lambda one: in_doubt if one.kind == "effect" else one.kind),
        ui.Column("expects", _expected, gives=True, rank=1),
        ui.Column("question", _description, gives=True, enough=24),
    )


def _expected(one: Waiting) -> str:
    examples = one.schema.get("examples") if isinstance(one.schema, dict) else None
    return ui.value_text(examples[0] if examples else one.schema, 60) if one.schema else ""


def _description(one: Waiting) -> str:
    if one.kind == "effect":
        where = f"step {one.step}" + (f", node {one.node}" if one.node else "")
        began = f", began {ui.when(one.began)}" if one.began is not None else ""
        called = f"{one.name}({one.inputs})" if one.inputs else one.name
        return f"{called} at {where}{began}; key {one.key}"
    if one.child:
        return f"run {one.child} to end"
    what = ui.value_text(one.question) if one.kind == "question" else one.name
    return f"{what} until {ui.when(one.until)}" if one.until is not None else what
