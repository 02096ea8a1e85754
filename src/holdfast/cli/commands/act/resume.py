"""`holdfast resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.cli.commands.act.answers import effect_choices
from holdfast.cli.commands.act.documents import Resume
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    DryRun,
    Line,
    Option,
    Yes,
    command,
    exits,
    import_from_here,
    status_cell,
)
from holdfast.errors import Interrupted, UsageError
from holdfast.storage.base import RecordQuery

if TYPE_CHECKING:
    from holdfast.core.records import Header
    from holdfast.runtime.resume import Resumable, ResumePlan
    from holdfast.storage.base import RunInfo

__all__ = ["resume"]


@command
def resume(
    cli: Cli,
    run: Annotated[
        str,
        Argument(metavar="RUN[@N]", help="The run; with @N, or by a checkpoint, taken back to it."),
    ],
    entry: Annotated[
        str | None,
        Option(
            metavar="MODULE:NAME",
            help="The graph, fleet or agent, where the run does not say it.",
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Go on although the graph has changed.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Go on with a run that stopped, in this process.

    The graph or agent is named by --entry, by [graphs] of holdfast.toml, or by the run itself. What
    will happen is told first. Because a run's own word for it makes this import a module, that is
    asked about first. --dry-run imports nothing.
    """
    from holdfast.checkpoint.manager import StateManager
    from holdfast.runtime.resume import load_resumable

    found = cli.finder.run(run)
    earlier = cli.finder.earlier(run)
    if earlier is not None and earlier.scope:
        raise UsageError(
            f"checkpoint {earlier.id} is of the nested scope {earlier.scope!r} of run"
            f" {found.run_id!r}",
            hint=f"resume from one of the run itself: holdfast log {found.run_id} lists them",
            run_id=found.run_id,
        )
    where = entry or cli.settings.graphs.value.get(found.name, "")
    recorded = "" if where else _recorded(cli, found)
    if dry_run:
        return _explain(cli, found, where or recorded, earlier)
    if recorded:
        cli.confirm(
            f"run {found.run_id} asks to import {recorded}",
            yes=yes,
            hint="--yes imports it; or name it with --entry, or in [graphs] of holdfast.toml",
        )
    import_from_here()
    graph = load_resumable(where or recorded)
    manager = StateManager(cli.storage)
    try:
        return _resume(cli, graph.over(manager), found, where or recorded, earlier, force=force)
    finally:
        asyncio.run(manager.close())


def _explain(cli: Cli, found: RunInfo, where: str, earlier: Header | None) -> int:
    """Say what would happen, by what the journal says: nothing of the user's is imported."""
    from holdfast.runtime.resume import explain

    plan = explain(cli.manager.reader, None, found.run_id)
    told = _tell(cli, plan, earlier, now=False)
    cli.say(f"would import {where}; whether it still fits the run is seen only then")
    _give(cli, plan, told, where, plan.status, plan.step, "planned")
    return 0


def _tell(cli: Cli, plan: ResumePlan, earlier: Header | None, *, now: bool) -> str:
    """Say what happens, or would happen; gives the text."""
    told = plan.tell(now=now) if earlier is None else _told_of(cli, plan, earlier, now=now)
    for line in told.splitlines():
        cli.say(line)
    return told


def _told_of(cli: Cli, plan: ResumePlan, earlier: Header, *, now: bool) -> str:
    """What it means to go on from a checkpoint that is not the newest."""
    run, step = f"run {plan.run_id}", earlier.step
    if earlier.status == "completed":
        none = "nothing runs" if now else "nothing would run"
        return f"{run} was completed at that checkpoint, of step {step}: {none}"
    origin = _on_the_way(cli, plan.checkpoint_id, earlier)
    if origin is not None and origin.id == earlier.id:
        return (
            f"{run} {'is' if now else 'would be'} taken back from step {plan.step}"
            f" to step {step}; effects recorded since then are not repeated"
        )
    goes = f"{run} {'goes' if now else 'would go'} on from the checkpoint of step {step}"
    if origin is None:
        return f"{goes}; effects recorded after it are not repeated"
    return (
        f"{goes}, which the run had left; effects recorded after it on that way are not repeated,"
        " those of the way it is on now may be"
    )


def _on_the_way(cli: Cli, newest: str, earlier: Header) -> Header | None:
    """The checkpoint by which the run passed *earlier*: that one, or one before it that another
    way led on from. None if those between are not all kept."""
    query = RecordQuery(run_id=earlier.run_id, scope="")
    kept = {header.id: header for header in cli.manager.storage.headers(query)}
    passed = kept.get(newest)
    while passed is not None and passed.seq > earlier.seq:
        passed = kept.get(passed.parent or "")
    return passed


def _resume(
    cli: Cli,
    graph: Resumable,
    found: RunInfo,
    where: str,
    earlier: Header | None,
    *,
    force: bool,
) -> int:
    plan = graph.explain_resume(found.run_id)
    told = _tell(cli, plan, earlier, now=True)
    if plan.questions and earlier is None:
        return _parked(cli, plan, told, where)
    # What the nodes print is no part of a document.
    aside = nullcontext() if cli.for_people else redirect_stdout(cli.terminal.stderr)
    try:
        with aside:
            checkpoint_id = earlier.id if earlier is not None else None
            state = graph.resume_sync(found.run_id, checkpoint_id=checkpoint_id, force=force)
    except Interrupted:
        return _parked(cli, graph.explain_resume(found.run_id), told, where)
    _give(cli, plan, told, where, state.status, state.step, "completed")
    return 0


def _recorded(cli: Cli, run: RunInfo) -> str:
    reader = cli.manager.reader
    newest = reader.newest(run)
    beside: Any = reader.load(newest).extra if newest is not None else {}
    if "langgraph" in beside:
        raise UsageError(
            f"run {run.run_id!r} is a LangGraph thread",
            hint="graph.invoke(None, config) goes on with it",
            run_id=run.run_id,
        )
    told = beside.get("entry_point")
    if not told:
        raise UsageError(
            f"run {run.run_id!r} does not say which graph or agent executes it",
            hint="give --entry module:graph, name it in [graphs] of holdfast.toml, or start the"
            " program that began it again",
            run_id=run.run_id,
        )
    return str(told)


def _parked(cli: Cli, plan: ResumePlan, told: str, where: str) -> int:
    _give(cli, plan, told, where, "interrupted", plan.step, "parked")
    waits = (*plan.questions, *plan.in_doubt)
    for waiting in waits:
        how = f"holdfast answer {plan.run_id} VALUE"
        if waiting.kind == "effect":
            how = effect_choices(plan.run_id, waiting.id if len(waits) > 1 else None)
        cli.say(
            Cell(f"waits: {waiting.id}", "cyan"),
            f" ({waiting.question or waiting.name}); {how}; then resume again",
        )
    return exits.PARKED


def _give(
    cli: Cli,
    plan: ResumePlan,
    told: str,
    where: str,
    status: str,
    step: int,
    outcome: Literal["planned", "completed", "parked"],
) -> None:
    document = Resume(
        run_id=plan.run_id,
        entry_point=where,
        plan=told,
        status=status,
        step=step,
        outcome=outcome,
    )

    def text() -> Iterator[object]:
        if outcome != "planned":
            yield Line.of(Cell(plan.run_id, "bold"), " ", status_cell(status), f" at step {step}")

    cli.give(document, text)
