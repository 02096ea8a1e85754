"""Questions and effects in doubt that runs wait for, and settling them."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Any, Literal

import msgspec

from surehold.cli import framework as ui
from surehold.engine.runs import Waiting, answer, check_fits, pending
from surehold.errors import NotFoundError, UsageError
from surehold.storage.queueing import queues_in
from surehold.views.waiting import how_to_resume

WaitingRun = Annotated[str, ui.Argument(metavar="RUN", help="The run that waits.")]
Id = Annotated[
    str | None, ui.Argument(metavar="ID", help="Which one, if several wait; pending lists them.")
]
Outcome = Literal["answered", "happened", "failed", "repeat"]


class Answered(ui.Document, kw_only=True, tag="answered"):
    """``approve``, ``reject`` and ``answer``"""

    run_id: str
    id: str
    kind: Literal["question", "effect", "event", "message", "timer"]
    outcome: Outcome
    value: msgspec.Raw


def pending_in(cli: ui.Cli, run: str | None, limit: int | None = None) -> list[Waiting]:
    """List what all runs, or one of them, wait for."""
    run_id = None if run is None else cli.finder.run(run).run_id
    return pending(run_id, limit=limit, storage=cli.manager)


def choose(cli: ui.Cli, run: str, id: str | None, *, yes_or_no: bool = False) -> Waiting:
    """The one that *id* means, of all that the run waits for; *yes_or_no*: no effect."""
    found = pending_in(cli, run)
    if id is not None:
        found = [one for one in found if id in (one.id, one.name, f"{one.run_id}/{one.id}")]
    else:
        passed = ("timer", "effect") if yes_or_no and len(found) > 1 else ("timer",)
        found = [one for one in found if one.kind not in passed]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"run {run!r} waits for {len(found)} things",
            hint=f"give the id of one: {', '.join(one.id for one in found)}",
        )
    what = "nothing" if id is None else f"nothing named {id}"
    raise NotFoundError(
        f"run {run!r} waits for {what}", hint="surehold pending lists what waits", run_id=run
    )


def settle(cli: ui.Cli, one: Waiting, value: Any, hint: str) -> None:
    """Answer a question; an answer that does not fit is refused with *hint*."""
    if one.kind == "effect":
        raise needs_outcome(one)
    check_fits(one.id, value, one.schema, hint=hint)
    answer(one.run_id, one.id, value, by=cli.who, storage=cli.manager)
    say_settled(cli, one, "answered", value)


def effect_choices(run_id: str, id: str | None = None) -> str:
    """The commands that settle an effect in doubt; *id* names it, if several wait."""
    say = f"surehold answer {run_id}" + (f" --id {quote(id)}" if id else "")
    return (
        f"it happened: {say} VALUE, with what it returned; it did not: {say} --repeat;"
        f" it failed: {say} --error TEXT"
    )


def needs_outcome(one: Waiting) -> UsageError:
    """The error of answering yes or no to an effect in doubt."""
    return UsageError(
        f"{one.id} is an effect in doubt: yes or no does not state its outcome",
        hint=effect_choices(one.run_id),
    )


def say_settled(cli: ui.Cli, one: Waiting, outcome: Outcome, value: Any) -> None:
    """Print what was recorded, and how to resume the run."""
    document = Answered(
        run_id=one.run_id, id=one.id, kind=one.kind, outcome=outcome, value=ui.raw(value)
    )
    said = f" {ui.value_text(value)}" if value is not None else ""
    line = ui.Line.of(ui.Cell(one.run_id, "bold"), f" {one.id}: {outcome}{said}")
    cli.give(document, lambda: [line])
    if cli.for_people:
        cli.say(ui.Cell(f"to continue: {_how_to_continue(cli, one.run_id)}", "dim"))


def _how_to_continue(cli: ui.Cli, run_id: str) -> str:
    """Describe how to resume the run, or the run that contains it."""
    reader, queues = cli.manager.reader, queues_in(cli.manager.storage)
    run = reader.run(run_id)
    while run is not None and (newest := reader.newest(run)) is not None:
        parent = reader.run(str(newest.metadata.get("parent_run", "")))
        if parent is None:
            queued = queues.entry_of(run.run_id) if queues is not None else None
            if queued is not None and queued.state not in ("dead", "cancelled"):
                return f"a worker that serves {queued.target} does so"
            return how_to_resume(cli.manager, run, cli.settings.graphs.value)
        run = parent
    return "start its program again"
