"""The code of a run that a command executes."""

from __future__ import annotations

from surehold.cli import framework as ui
from surehold.errors import UsageError
from surehold.storage.base import RunInfo
from surehold.views.waiting import how_to_resume, recorded_entry


def entry_for(cli: ui.Cli, run: RunInfo, entry: str | None, *, yes: bool) -> str:
    """The code of a run: as given or, after a confirmation, as recorded."""
    where = entry_of(cli, run, entry)
    if not _given(cli, run, entry):
        cli.confirm(
            f"run {run.run_id} asks to import {where}",
            yes=yes,
            hint="--yes imports it; or name it with --entry, or in [graphs] of surehold.toml",
        )
    return where


def entry_of(cli: ui.Cli, run: RunInfo, entry: str | None) -> str:
    """The code of a run: the one that is given, or the recorded one."""
    return _given(cli, run, entry) or _recorded(cli, run)


def _given(cli: ui.Cli, run: RunInfo, entry: str | None) -> str:
    return entry or str(cli.settings.graphs.value.get(run.name, ""))


def _recorded(cli: ui.Cli, run: RunInfo) -> str:
    entry = recorded_entry(cli.manager, run)
    if entry == "":
        raise UsageError(
            f"run {run.run_id!r} is a LangGraph thread",
            hint="graph.invoke(None, config) resumes it",
            run_id=run.run_id,
        )
    if run.door == "program":
        over = run.status == "completed"
        hint = f"surehold replay {run.run_id} -- COMMAND gives the command its recorded calls"
        if not over:
            hint = f"to resume it: {how_to_resume(cli.manager, run, {})}; {hint}"
        raise UsageError(
            f"run {run.run_id!r} is of a recorded program" + (" and is completed" if over else ""),
            hint=hint,
            run_id=run.run_id,
        )
    if entry is None and run.status == "completed":
        raise UsageError(
            f"run {run.run_id!r} is completed: there is nothing to resume",
            hint=f"surehold show {run.run_id}; surehold fork {run.run_id} begins a new run from it",
            run_id=run.run_id,
        )
    if entry is None:
        raise UsageError(
            f"run {run.run_id!r} does not record which graph or agent executes it",
            hint="give --entry module:graph, name it in [graphs] of surehold.toml, or start the"
            " program that began it again",
            run_id=run.run_id,
        )
    return entry
