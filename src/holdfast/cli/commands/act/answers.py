"""`holdfast pending`, `approve`, `reject` and `answer`: what runs wait for, and saying it."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.cli.commands.act.documents import Answered, Pending, WaitingRow
from holdfast.cli.commands.act.fork import read_value
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Line,
    Option,
    Table,
    command,
    raw,
    value_text,
)
from holdfast.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.effects import Waiting

__all__ = ["answer", "approve", "effect_choices", "pending", "reject"]

_Run = Annotated[str, Argument(metavar="RUN", help="The run that waits.")]
_Id = Annotated[
    str | None, Argument(metavar="ID", help="Which, if several wait; pending lists them.")
]


@command
def pending(
    cli: Cli,
    run: Annotated[str | None, Argument(metavar="RUN", help="Only this run.")] = None,
) -> None:
    """List what runs wait for: questions, and effects of which nobody knows the outcome."""
    found = _waiting(cli, run)
    rows = [
        WaitingRow(
            run_id=one.run_id,
            id=one.id,
            kind=one.kind,
            step=one.step,
            node=one.node,
            name=one.name,
            question=raw(one.question),
            schema=one.schema,
            problem=one.problem,
            key=one.key,
            policy=one.policy,
            began=one.began,
        )
        for one in found
    ]
    cli.give(Pending(pending=rows), lambda: _table(found))
    if cli.for_people and not found:
        cli.say("nothing waits")
    effects = [one for one in found if one.kind == "effect"]
    if cli.for_people and effects:
        one = effects[0]
        cli.say(effect_choices(one.run_id) if len(found) == 1 else effect_choices("RUN", "ID"))


def _table(found: list[Waiting]) -> Iterator[object]:
    if not found:
        return
    columns = (
        Column("run", gives=True),
        Column("id", gives=True),
        Column("what"),
        Column("question", gives=True),
        Column("expects", gives=True),
    )
    rows = [
        [
            Cell(one.run_id, "bold"),
            one.id,
            one.kind if one.kind == "question" else Cell("effect in doubt", "yellow"),
            value_text(one.question) if one.kind == "question" else _call(one),
            value_text(one.schema, 40) if one.schema else "",
        ]
        for one in found
    ]
    yield Table(columns, rows)


def _call(one: Waiting) -> str:
    return f"{one.name} at step {one.step}, node {one.node}; key {one.key}"


def _waiting(cli: Cli, run: str | None) -> list[Waiting]:
    from holdfast.checkpoint.effects import pending as look

    if run is None:
        return look(storage=cli.manager)
    run_id = cli.finder.run(run).run_id
    return look(run_id, storage=cli.manager)


def _one(cli: Cli, run: str, id: str | None, kind: str | None) -> Waiting:
    """What is meant, of all that the run waits for."""
    found = _waiting(cli, run)
    if id is not None:
        found = [one for one in found if id in (one.id, one.name, f"{one.run_id}/{one.id}")]
    elif kind is not None:
        found = [one for one in found if one.kind == kind]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"run {run!r} waits for {len(found)} things",
            hint=f"give the id of one: {', '.join(one.id for one in found)}",
        )
    what = f"no {kind}" if kind else "nothing"
    if id is not None:
        what += f" {id}" if kind else f" named {id}"
    raise NotFoundError(
        f"run {run!r} waits for {what}", hint="holdfast pending lists what waits", run_id=run
    )


@command
def approve(cli: Cli, run: _Run, id: _Id = None) -> None:
    """Answer yes to the question that a run waits for."""
    _say(cli, _one(cli, run, id, "question"), True)


@command
def reject(
    cli: Cli,
    run: _Run,
    id: _Id = None,
    reason: Annotated[
        str | None, Option(help="Why, for an agent or a fleet that asks for approval.")
    ] = None,
) -> None:
    """Answer no to the question that a run waits for."""
    answer = False if reason is None else {"approved": False, "reason": reason}
    _say(cli, _one(cli, run, id, "question"), answer)


@command
def answer(
    cli: Cli,
    run: _Run,
    value: Annotated[
        str | None, Argument(metavar="VALUE", help="The answer; JSON or text.")
    ] = None,
    id: Annotated[str | None, Option("--id", help="Which, if several wait.")] = None,
    repeat: Annotated[
        bool, Option("--repeat", help="The effect did not happen: call it again.")
    ] = False,
    error: Annotated[
        str | None, Option(metavar="TEXT", help="The effect failed with this.")
    ] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="The effect did return this true or false.")
    ] = False,
) -> None:
    """Answer a question, or tell what became of an effect in doubt.

    Nothing is executed: resume the run to go on with the answer.
    """
    if (value is not None) + repeat + (error is not None) != 1:
        raise UsageError("give one of VALUE, --repeat and --error")
    one = _one(cli, run, id, None)
    if one.kind == "question":
        if value is None:
            raise UsageError(f"{one.id} is a question", hint="give its answer")
        _say(cli, one, read_value(value))
        return
    if value is not None and isinstance(read_value(value), bool) and not yes:
        raise _no_outcome(one)
    _tell(cli, one, value, error)


def _say(cli: Cli, one: Waiting, value: Any) -> None:
    from holdfast.checkpoint.effects import resolve

    if one.kind == "effect":
        raise _no_outcome(one)
    _check(one, value)
    resolve(one.run_id, one.id, value, storage=cli.manager)
    _give(cli, one, "answered", value)


def _tell(cli: Cli, one: Waiting, value: str | None, error: str | None) -> None:
    from holdfast.checkpoint.effects import resolve

    outcome: Literal["happened", "failed", "repeat"]
    if value is not None:
        resolve(one.run_id, one.id, read_value(value), storage=cli.manager)
        outcome = "happened"
    elif error is not None:
        resolve(one.run_id, one.id, error=error, storage=cli.manager)
        outcome = "failed"
    else:
        resolve(one.run_id, one.id, repeat=True, storage=cli.manager)
        outcome = "repeat"
    _give(cli, one, outcome, read_value(value) if value is not None else error)


def _check(one: Waiting, value: Any) -> None:
    """Refuse what plainly does not fit before it is written."""
    from holdfast.checkpoint.effects import check_fits
    from holdfast.core.policy import unfit

    yes = "" if unfit(True, one.schema) else f"; holdfast approve {one.run_id} says true"
    check_fits(one.id, value, one.schema, hint=yes)


def effect_choices(run_id: str, id: str | None = None) -> str:
    """What can be said of an effect in doubt; *id* tells which, if several wait."""
    say = f"holdfast answer {run_id}" + (f" --id {quote(id)}" if id else "")
    return (
        f"it happened: {say} VALUE, with what it returned; it did not: {say} --repeat;"
        f" it failed: {say} --error TEXT"
    )


def _no_outcome(one: Waiting) -> UsageError:
    return UsageError(
        f"{one.id} is an effect in doubt: yes or no does not say what became of it",
        hint=effect_choices(one.run_id),
    )


def _outermost(cli: Cli, run_id: str) -> str:
    """The run that is resumed to go on with that one, which may be inside it."""
    reader = cli.manager.reader
    while (run := reader.run(run_id)) is not None and (newest := reader.newest(run)) is not None:
        parent = newest.metadata.get("parent_run")
        if not parent:
            break
        run_id = str(parent)
    return run_id


def _give(
    cli: Cli,
    one: Waiting,
    outcome: Literal["answered", "happened", "failed", "repeat"],
    value: Any,
) -> None:
    document = Answered(
        run_id=one.run_id, id=one.id, kind=one.kind, outcome=outcome, value=raw(value)
    )

    def text() -> Iterator[object]:
        said = f" {value_text(value)}" if value is not None else ""
        yield Line.of(Cell(one.run_id, "bold"), f" {one.id}: {outcome}{said}")

    cli.give(document, text)
    if cli.for_people:
        cli.say(Cell(f"holdfast resume {_outermost(cli, one.run_id)} goes on with it", "dim"))
