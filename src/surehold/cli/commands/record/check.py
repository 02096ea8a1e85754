"""`surehold check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.doors.resume import CheckVerdict, Resumable, check_run, load_resumable
from surehold.errors import UsageError
from surehold.storage.base import RunQuery

_OVER = ("completed", "failed")


class Checked(ui.Document, kw_only=True, tag="checked"):
    """``check``"""

    runs: Annotated[list[CheckVerdict], ui.Rows("verdict")]


@ui.command
def check(
    cli: ui.Cli,
    apps: Annotated[
        list[str], ui.Argument("MODULE:NAME", help="The workflow, graph or agent that is new.")
    ],
) -> int:
    """Judge before a deploy whether new code continues the runs that are open.

    Each run resumes, asks, or cannot be resumed; nothing is written, and no live call is made. The
    runs of a workflow are executed on a copy with their recorded calls, and the first call that
    differs is named. Exit code 8 if a run cannot be resumed.
    """
    ui.import_from_here()
    verdicts = [
        verdict
        for app in apps
        for verdict in _verdicts(cli, load_resumable(app), app.rpartition(":")[2])
    ]
    document = Checked(runs=verdicts)
    cli.give(document, lambda: _text(document))
    return 8 if any(one.outcome == "cannot" for one in verdicts) else 0


def _verdicts(cli: ui.Cli, resumable: Resumable, name: str) -> Iterator[CheckVerdict]:
    manager = cli.manager
    for run in manager.storage.runs(RunQuery(name=resumable_name(resumable, name))):
        if run.status not in _OVER:
            yield check_run(manager, resumable, run.run_id)


def resumable_name(resumable: Resumable, name: str) -> str:
    """The name that the runs of *resumable* share; *name* is that of its variable."""
    for owner in (resumable, *vars(resumable).values()):
        found = getattr(owner, "name", None) or getattr(owner, "agent_id", None)
        if isinstance(found, str):
            return found
    if not name:
        raise UsageError("the code has no name", hint="give MODULE:NAME")
    return name


def _text(document: Checked) -> Iterator[object]:
    for one in document.runs:
        style = {"resumes": "green", "asks": "yellow"}.get(one.outcome, "red")
        yield ui.Line.of(
            ui.Cell(one.run_id, "bold"), "  ", ui.Cell(one.outcome, style), f"  {one.detail}"
        )
    if not document.runs:
        yield "no open run"
