"""`holdfast repl` and `holdfast selftest`: programs of their own, found when they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Annotated, Any

from holdfast.cli.commands.start.documents import PromiseRow, SelfTest
from holdfast.cli.framework import Argument, Cli, Option, command
from holdfast.errors import UsageError

__all__ = ["repl", "selftest"]


@command
def repl(
    cli: Cli,
    path: Annotated[
        str | None, Argument(metavar="WORKFLOW", help="A workflow.yaml; else the one here.")
    ] = None,
) -> int:
    """Open a console on a fleet: give it tasks, list its checkpoints, resume it."""
    given = cli.settings.storage
    storage = given.value if given.origin in ("--storage", "HOLDFAST_STORAGE") else None
    return int(_program("holdfast.cli.console.repl")(path, storage=storage))


@command
def selftest(
    cli: Cli,
    rounds: Annotated[int, Option(help="How often a run is killed.", min=1)] = 10,
    seed: Annotated[int | None, Option(help="To do the same again.")] = None,
) -> int:
    """Find out what the storage really guarantees where it is: kill, spoil, fill up.

    It works in a scratch area beside the storage and leaves the runs alone.
    """
    words = [cli.settings.storage.value, "--rounds", str(rounds)]
    words += [] if seed is None else ["--seed", str(seed)]
    validate = _program("holdfast.testing.validation")
    said = StringIO()
    with redirect_stdout(cli.terminal.stdout if cli.for_people else said):
        code = int(validate(words))
    if not cli.for_people:
        document = SelfTest(
            storage=cli.address, passed=code == 0, promises=list(_promises(said.getvalue()))
        )
        cli.give(document, list)
    return code


def _promises(said: str) -> Iterator[PromiseRow]:
    for line in said.splitlines():
        verdict, _, rest = line.partition(" ")
        if verdict in ("PASS", "FAIL", "SKIP"):
            promise, _, detail = rest.partition(": ")
            yield PromiseRow(verdict=verdict, promise=promise, detail=detail)  # type: ignore[arg-type]


def _program(module: str) -> Any:
    try:
        return import_module(module).main
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(
            f"this build of Holdfast has no {module.rpartition('.')[2]}", hint="update holdfast"
        ) from None
