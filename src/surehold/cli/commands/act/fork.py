"""`surehold fork`."""

from __future__ import annotations

from typing import Annotated

from surehold.cli import framework as ui
from surehold.core.records import check_run_id
from surehold.doors.resume import fork_with
from surehold.views.forks import Origin


class Fork(ui.Document, kw_only=True, tag="fork"):
    run_id: str
    checkpoint_id: str
    step: int
    forked_from: Origin
    changed: list[str]


@ui.command
def fork(
    cli: ui.Cli,
    checkpoint: Annotated[str, ui.Argument(metavar="RUN[@N]", help="Where to begin.")],
    set: Annotated[
        list[str] | None,
        ui.Option(metavar="KEY=VALUE", help="Begin with another value; JSON or text."),
    ] = None,
    before: Annotated[
        str | None,
        ui.Option(metavar="CALL", help="Begin before this recorded call: charge@2."),
    ] = None,
    run_id: Annotated[str | None, ui.Option("--as", metavar="RUN", help="Its run id.")] = None,
) -> None:
    """Start a new run with the state of a checkpoint. The source stays as it is.

    The fork of a graph or an agent inherits no effects: it calls whatever it needs again. That of
    a workflow has the calls that were recorded by then; with other arguments it begins anew. With
    --before any fork has the calls that began before that one, and makes that one anew.
    """
    edit = ui.read_pairs("--set", set or ())
    if run_id is not None:
        check_run_id(run_id, "--as")
    header = cli.finder.checkpoint(checkpoint)
    made = fork_with(cli.manager, header, edit, run_id, before)
    place = f"{header.run_id}@{header.step}" if before is None else f"{header.run_id} at {before}"
    cli.note(made.run_id, f"forked it from {place}", step=made.step)
    document = Fork(
        run_id=made.run_id,
        checkpoint_id=made.checkpoint_id,
        step=made.step,
        forked_from=Origin(header.run_id, header.id, header.step),
        changed=[*edit],
    )
    changed = f", {', '.join(edit)} changed" if edit else ""
    source = f" forked from {place}{changed}"
    cli.give(document, lambda: [ui.Line.of(ui.Cell(document.run_id, "bold"), source)])
