"""`surehold answer`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import WaitingRun, choose, needs_outcome, say_settled, settle
from surehold.core.policy import validate_answer
from surehold.engine.runs import answer as record_answer
from surehold.engine.runs import retract
from surehold.errors import UsageError


@ui.command
def answer(
    cli: ui.Cli,
    run: WaitingRun,
    first: Annotated[
        str | None, ui.Argument(metavar="ID", help="Which one, if several wait.")
    ] = None,
    value: Annotated[str | None, ui.Argument(help="The answer; JSON or text.")] = None,
    id: Annotated[str | None, ui.Option(help="The same as ID.")] = None,
    repeat: Annotated[bool, ui.Option(help="The effect did not happen: call it again.")] = False,
    error: Annotated[str | None, ui.Option(help="The effect failed with this.")] = None,
    yes: Annotated[
        bool, ui.Option("--yes", "-y", help="The call really returned this true or false.")
    ] = False,
    undo: Annotated[bool, ui.Option(help="Take back an answer that no resume has used.")] = False,
) -> None:
    """Answer a question, or state the outcome of an effect in doubt.

    Nothing is executed: resume the run to continue with the answer.
    """
    if value is None and not repeat and error is None and not undo:
        first, value = None, first
    if first is not None and id is not None:
        raise UsageError("the id is given twice", hint="give ID or --id")
    id = first or id
    if (value is not None) + repeat + (error is not None) + undo != 1:
        raise UsageError("give one of VALUE, --repeat, --error and --undo")
    if undo:
        if id is None:
            raise UsageError("--undo needs the question's id", hint="add --id ID")
        retract(run, id, storage=cli.manager)
        cli.say(ui.Cell(run, "bold"), f" waits for an answer to {id} again")
        return
    one = choose(cli, run, id)
    given = None if value is None else ui.read_value(value)
    if one.kind != "effect":
        if value is None:
            raise UsageError(f"{one.id} is not an effect but a {one.kind}", hint="give its answer")
        settle(cli, one, given, _yes_or_no(one.run_id, one.schema))
    elif value is not None:
        if isinstance(given, bool) and not yes:
            raise needs_outcome(one)
        record_answer(one.run_id, one.id, given, by=cli.who, storage=cli.manager)
        say_settled(cli, one, "happened", given)
    elif error is not None:
        record_answer(one.run_id, one.id, error=error, by=cli.who, storage=cli.manager)
        say_settled(cli, one, "failed", error)
    else:
        record_answer(one.run_id, one.id, repeat=True, by=cli.who, storage=cli.manager)
        say_settled(cli, one, "repeat", None)


def _yes_or_no(run_id: str, schema: object) -> str:
    """The commands for yes and no, if the question takes them."""
    if validate_answer(True, schema):
        return ""
    return f"; surehold approve {run_id} says true, surehold reject {run_id} says false"
