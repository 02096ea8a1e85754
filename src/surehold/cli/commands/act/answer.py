"""`surehold answer`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import WaitingRun, choose, needs_outcome, say_settled, settle
from surehold.core.policy import validate_answer
from surehold.engine.runs import resolve
from surehold.errors import UsageError


@ui.command
def answer(
    cli: ui.Cli,
    run: WaitingRun,
    value: Annotated[str | None, ui.Argument(help="The answer; JSON or text.")] = None,
    id: Annotated[str | None, ui.Option(help="Which one, if several wait.")] = None,
    repeat: Annotated[bool, ui.Option(help="The effect did not happen: call it again.")] = False,
    error: Annotated[str | None, ui.Option(help="The effect failed with this.")] = None,
    yes: Annotated[
        bool, ui.Option("--yes", "-y", help="The effect did return this true or false.")
    ] = False,
) -> None:
    """Answer a question, or state the outcome of an effect in doubt.

    Nothing is executed: resume the run to continue with the answer.
    """
    if (value is not None) + repeat + (error is not None) != 1:
        raise UsageError("give one of VALUE, --repeat and --error")
    one = choose(cli, run, id)
    given = None if value is None else ui.read_value(value)
    if one.kind != "effect":
        if value is None:
            raise UsageError(f"{one.id} is no effect but a {one.kind}", hint="give its answer")
        settle(cli, one, given, _yes_or_no(one.run_id, one.schema))
    elif value is not None:
        if isinstance(given, bool) and not yes:
            raise needs_outcome(one)
        resolve(one.run_id, one.id, given, storage=cli.manager)
        say_settled(cli, one, "happened", given)
    elif error is not None:
        resolve(one.run_id, one.id, error=error, storage=cli.manager)
        say_settled(cli, one, "failed", error)
    else:
        resolve(one.run_id, one.id, repeat=True, storage=cli.manager)
        say_settled(cli, one, "repeat", None)


def _yes_or_no(run_id: str, schema: object) -> str:
    """The commands for yes and no, if the question takes them."""
    if validate_answer(True, schema):
        return ""
    return f"; surehold approve {run_id} says true, surehold reject {run_id} says false"
