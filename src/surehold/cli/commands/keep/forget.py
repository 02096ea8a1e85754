"""`surehold forget`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from surehold.cli import framework as ui
from surehold.cli.commands.keep.prune import free
from surehold.core.policy import Decision, Rules
from surehold.engine.retention import bulk
from surehold.engine.runs import check_not_held
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RunInfo
from surehold.views.forgetting import Forget, plan_forget

_SHOWN = 40


def _rule(metavar: str, help: str) -> Any:
    return Annotated[str | None, ui.Option(metavar=metavar, help=help)]


_RULES = {
    "keep_last": _rule("N", "The newest N; or unlimited."),
    "keep_within": _rule("AGE", "All up to this age, seen from the newest: 2y5m7d3h."),
    "keep_every": _rule("N", "One of every N steps."),
    "keep_hourly": _rule("N", "The newest of each of N hours."),
    "keep_daily": _rule("N", "The newest of each of N days."),
    "keep_weekly": _rule("N", "The newest of each of N weeks."),
    "keep_monthly": _rule("N", "The newest of each of N months."),
    "keep_yearly": _rule("N", "The newest of each of N years."),
    "keep_tags": Annotated[
        list[str] | None,
        ui.Option("--keep-tag", metavar="TAG", help="Those with it; a,b needs both."),
    ],
    "keep_status": Annotated[
        list[str] | None, ui.Option(metavar="STATUS", help="Those with this status.")
    ],
    "keep_failed": _rule("AGE", "Those of failed runs, up to this age."),
    "max_age": _rule("AGE", "Nothing older than this, whatever other rules say."),
}


@ui.command
def forget(
    cli: ui.Cli,
    runs: ui.Runs = None,
    group_by: Annotated[str, ui.Option(help="run, name or all: what is counted together.")] = "run",
    whole_run: Annotated[bool, ui.Option(help="Delete the runs with exactly these ids.")] = False,
    prune: Annotated[bool, ui.Option(help="Free the space as well.")] = False,
    dry_run: ui.DryRun = False,
    yes: ui.Yes = False,
    **rules: Annotated[Any, _RULES],
) -> None:
    """Drop checkpoints that no rule keeps.

    A checkpoint stays if one rule matches it. Rules count within each run. The newest checkpoint of
    a run, pinned ones, those of groups and those of a run that a live process executes are never
    dropped. Without rules here, those of [retention] in surehold.toml apply; without either,
    nothing is dropped. For an agent that you do not trust use --keep-within: it could push good
    checkpoints out of a count by saving often.
    """
    rules = {name: value for name, value in rules.items() if value}
    if whole_run:
        _delete(cli, runs or [], rules, dry_run=dry_run, yes=yes)
    else:
        chosen = cli.finder.runs(runs)
        _forget(cli, chosen, *_rules(cli, rules, group_by), prune=prune, dry_run=dry_run, yes=yes)


def _rules(cli: ui.Cli, given: dict[str, Any], group_by: str) -> tuple[Rules, str]:
    if given:
        try:
            return Rules.from_mapping({**given, "group_by": group_by}), "options"
        except UsageError as error:
            raise _by_option(error) from None
    rules = cli.settings.rules()
    if rules.empty:
        cli.say("there are no rules, so nothing is dropped", ui.Cell(" (give --keep-last)", "dim"))
    return rules, cli.settings.retention.origin


def _by_option(error: UsageError) -> UsageError:
    """The *error* about a rule, which it names as the command line does."""
    name = str(error.facts.get("name", ""))
    if not name or not error.message.startswith(name):
        return error
    option = "--keep-tag" if name == "keep_tags" else f"--{name.replace('_', '-')}"
    message = option + error.message.removeprefix(name)
    return UsageError(message, hint=error.hint, **error.facts)


def _forget(
    cli: ui.Cli,
    runs: list[RunInfo],
    rules: Rules,
    origin: str,
    *,
    prune: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    decisions, document = plan_forget(cli.manager, runs, rules, origin)
    document.dry_run = dry_run
    gone = document.forgotten
    if dry_run or not gone:
        cli.give(document, lambda: _plan_lines(decisions, document))
        return
    if cli.for_people and not yes:
        cli.terminal.show(_plan_lines(decisions, document))
    cli.confirm(f"{ui.counted(gone, 'checkpoint')} would be dropped", yes=yes)
    many = len({one.header.run_id for one in decisions if not one.keep})
    dropping = bulk.forget(cli.manager.reader, cli.manager.retention, decisions)
    for _ in cli.progress("forgetting", dropping, many):
        pass
    if prune:
        document.freed_bytes = free(cli, runs)
    cli.give(document, lambda: [_done_line(document, many, pruned=prune)])


def _delete(
    cli: ui.Cli, run_ids: list[str], rules: dict[str, Any], *, dry_run: bool, yes: bool
) -> None:
    """Delete whole runs."""
    if rules or not run_ids:
        raise UsageError("--whole-run takes the runs to delete, and no rules")
    runs = [_exactly(cli, run_id) for run_id in dict.fromkeys(run_ids)]
    names = ", ".join(run_ids)
    document = Forget(
        dry_run=dry_run,
        rules={},
        origin="options",
        kept=0,
        forgotten=sum(run.checkpoints for run in runs),
        freed_bytes=sum(run.stored for run in runs),
        deleted_runs=[run.run_id for run in runs],
        decisions=[],
    )
    if not dry_run:
        many = ui.counted(document.forgotten, "checkpoint")
        cli.confirm(f"{names} would be deleted, {many}", yes=yes)
        for run in runs:
            cli.manager.delete_run(run.run_id)
        cli.storage.compact()
    word = "would be deleted" if dry_run else "deleted"
    cli.give(document, lambda: [ui.Line.of(ui.Cell(names, "bold"), f" {word}")])


def _exactly(cli: ui.Cli, run_id: str) -> RunInfo:
    """The run with that full id, if no live process holds it; no name, no prefix."""
    run = cli.manager.reader.run(run_id)
    if run is None:
        raise NotFoundError(
            f"no run has the id {run_id!r}", hint="surehold runs shows whole ids", run_id=run_id
        )
    check_not_held(cli.manager.reader, run_id)
    return run


def _plan_lines(decisions: list[Decision], document: Forget) -> Iterator[object]:
    words = {True: ui.Cell("keep", "green"), False: ui.Cell("drop", "red")}

    def name(one: Decision) -> ui.Cell:
        header = one.header
        return ui.Cell(f"{header.run_id}@{header.step}", "bold" if one.keep else "dim")

    def saved(one: Decision) -> ui.Cell:
        return ui.Cell(ui.when(one.header.saved_at), "dim")

    yield ui.Table.of(
        decisions[:_SHOWN],
        ui.Column("checkpoint", name, gives=True, rank=2),
        ui.Column("saved", saved, gives=True, rank=1, whole=True),
        ui.Column("kind", lambda one: one.header.kind),
        ui.Column("", lambda one: words[one.keep]),
        ui.Column("reasons", lambda one: ", ".join(one.reasons), gives=True),
    )
    if len(decisions) > _SHOWN:
        yield ui.Cell(f"... {len(decisions) - _SHOWN:,} more; --jsonl lists all", "dim")
    yield ui.Line.of(
        f"keep {document.kept:,}, drop {document.forgotten:,}",
        ui.Cell(f" ({_freeing(document)})" if document.forgotten else "", "dim"),
    )


def _done_line(document: Forget, many: int, *, pruned: bool) -> ui.Line:
    dropped = ui.counted(document.forgotten, "checkpoint")
    freed = f"{ui.size(document.freed_bytes)} freed" if pruned else _freeing(document)
    return ui.Line.of(
        f"dropped {dropped} of {ui.counted(many, 'run')}, kept {document.kept:,}",
        ui.Cell(f" ({freed})", "dim"),
    )


def _freeing(document: Forget) -> str:
    if document.freed_bytes:
        return f"surehold prune frees {ui.size(document.freed_bytes)}"
    return "prune frees nothing yet: kept checkpoints build on what is dropped"
