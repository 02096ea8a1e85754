"""`surehold resume`."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Literal

from surehold.cli import framework as ui
from surehold.cli.commands.act.waiting import effect_choices
from surehold.cli.entries import entry_for, entry_of
from surehold.core.records import Header
from surehold.doors.resume import Resumable, ResumePlan, explain, load_resumable
from surehold.engine.runs import quietly
from surehold.errors import RunError, Signal, SureholdError, UsageError
from surehold.storage.base import RunInfo
from surehold.views.waiting import rewind_text

Outcome = Literal["planned", "completed", "waiting", "ended"]


class Resume(ui.Document, kw_only=True, tag="resume"):
    run_id: str
    entry_point: str
    plan: str
    """The effect of the resume, as `explain_resume` describes it."""
    status: str
    step: int
    outcome: Outcome


@ui.command
def resume(
    cli: ui.Cli,
    run: Annotated[
        str,
        ui.Argument(
            metavar="RUN[@N]", help="The run; with @N or a checkpoint, rewound to it first."
        ),
    ],
    entry: Annotated[
        str | None,
        ui.Option(
            metavar="MODULE:NAME", help="The code of the run, if the run does not record it."
        ),
    ] = None,
    force: Annotated[bool, ui.Option(help="Resume although the graph changed.")] = False,
    dry_run: ui.DryRun = False,
    yes: ui.Yes = False,
) -> int:
    """Resume a run that stopped, in this process.

    The workflow, graph, agent or fleet is named by --entry, by [graphs] of surehold.toml, or by the
    run itself. What will happen is printed first. A module that only the run itself names is
    imported after a confirmation. --dry-run imports nothing.
    """
    found = cli.finder.run(run)
    earlier = cli.finder.earlier(run)
    if earlier is not None and earlier.scope:
        raise UsageError(
            f"checkpoint {earlier.id} is of the nested scope {earlier.scope!r} of run"
            f" {found.run_id!r}",
            hint=f"resume from one of the run itself: surehold log {found.run_id} lists them",
            run_id=found.run_id,
        )
    if dry_run:
        return _explain(cli, found, entry_of(cli, found, entry), earlier)
    where = entry_for(cli, found, entry, yes=yes)
    ui.import_from_here()
    graph = load_resumable(where)
    manager = graph.manager_on(cli.storage, cli.manager.hook_manager)
    try:
        return _resume(cli, graph.over(manager), found, where, earlier, force=force)
    finally:
        asyncio.run(manager.close())


def _explain(cli: ui.Cli, found: RunInfo, where: str, earlier: Header | None) -> int:
    """Print what would happen, from the journal alone: no user code is imported."""
    plan = explain(cli.manager.reader, None, found.run_id)
    said = _say(cli, plan, earlier, now=False)
    cli.say(f"would import {where}; whether it fits the run is checked only then")
    _give(cli, plan, said, where, plan.status, plan.step, "planned")
    return 0


def _say(cli: ui.Cli, plan: ResumePlan, earlier: Header | None, *, now: bool) -> str:
    """Print what happens, or would happen; gives the text."""
    text = (
        plan.tell(now=now) if earlier is None else rewind_text(cli.storage, plan, earlier, now=now)
    )
    for line in text.splitlines():
        cli.say(line)
    return text


def _resume(
    cli: ui.Cli,
    graph: Resumable,
    found: RunInfo,
    where: str,
    earlier: Header | None,
    *,
    force: bool,
) -> int:
    plan = graph.explain_resume(found.run_id)
    said = _say(cli, plan, earlier, now=True)
    if plan.questions and earlier is None:
        return _waiting(cli, plan, said, where)
    if plan.status != "completed":
        cli.note(found.run_id, f"resumed it with {where}", step=plan.step)
    # The output of nodes is not part of a document.
    aside = nullcontext() if cli.for_people else redirect_stdout(cli.terminal.stderr)
    with aside, quietly():
        checkpoint_id = earlier.id if earlier is not None else None
        try:
            result = graph.resume_sync(found.run_id, checkpoint_id=checkpoint_id, force=force)
        except (SureholdError, Signal):
            raise
        except Exception as error:
            raise RunError(
                f"run {found.run_id!r} failed: {type(error).__name__}: {error}",
                hint=f"surehold show {found.run_id}; --debug shows where",
                run_id=found.run_id,
            ) from error
    if result.status == "waiting":
        return _waiting(cli, graph.explain_resume(found.run_id), said, where)
    outcome: Outcome = "completed" if result.completed else "ended"
    _give(cli, plan, said, where, result.status, result.step, outcome)
    if result.status == "interrupted":
        return ui.exits.INTERRUPTED
    if result.status == "failed":
        return ui.exits.FAILED
    return 0 if result.completed else ui.exits.LIMIT


def _waiting(cli: ui.Cli, plan: ResumePlan, said: str, where: str) -> int:
    _give(cli, plan, said, where, "waiting", plan.step, "waiting")
    waits = (*plan.questions, *plan.in_doubt)
    for waiting in waits:
        how = f"surehold answer {plan.run_id} VALUE"
        if waiting.kind == "effect":
            how = effect_choices(plan.run_id, waiting.id if len(waits) > 1 else None)
        cli.say(
            ui.Cell(f"waits: {waiting.id}", "cyan"),
            f" ({waiting.question or waiting.name}); {how}; then resume again",
        )
    return ui.exits.WAITING


def _give(
    cli: ui.Cli, plan: ResumePlan, said: str, where: str, status: str, step: int, outcome: Outcome
) -> None:
    run_id = plan.run_id
    document = Resume(
        run_id=run_id, entry_point=where, plan=said, status=status, step=step, outcome=outcome
    )
    line = ui.Line.of(ui.Cell(run_id, "bold"), " ", ui.status_cell(status), f" at step {step}")
    cli.give(document, lambda: [line] if outcome != "planned" else [])
