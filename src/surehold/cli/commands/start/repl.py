"""`surehold repl`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui


@ui.command
def repl(
    cli: ui.Cli,
    path: Annotated[
        str | None, ui.Argument(metavar="WORKFLOW", help="A workflow.yaml; else the one here.")
    ] = None,
    modules: Annotated[
        list[str] | None,
        ui.Option("--import", metavar="MODULE", help="Import it: it registers storages or models."),
    ] = None,
) -> int:
    """Open a console on a fleet: give it tasks, list its checkpoints, resume it."""
    from surehold.cli.console.repl import main

    ui.import_modules(modules or ())
    given = cli.settings.storage
    storage = given.value if given.origin in ("--storage", "SUREHOLD_STORAGE") else None
    return main(path, storage=storage)
