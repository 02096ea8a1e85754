"""`holdfast forget` and `holdfast policy`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from holdfast.cli.commands.keep.documents import DecisionRow, Forget, Policy
from holdfast.cli.commands.keep.prune import free
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    DryRun,
    Line,
    Option,
    Table,
    Yes,
    command,
    size,
    when,
)
from holdfast.core.policy import Rules
from holdfast.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from holdfast.core.policy import Decision
    from holdfast.storage.base import RunInfo

__all__ = ["chosen_runs", "forget", "policy"]

_Last = Annotated[str | None, Option(metavar="N", help="The newest N; or unlimited.")]
_Within = Annotated[
    str | None,
    Option(metavar="AGE", help="All up to this age, seen from the newest: 2y5m7d3h."),
]
_Every = Annotated[str | None, Option(metavar="N", help="One of every N steps.")]
_Hourly = Annotated[str | None, Option(metavar="N", help="The newest of each of N hours.")]
_Daily = Annotated[str | None, Option(metavar="N", help="The newest of each of N days.")]
_Weekly = Annotated[str | None, Option(metavar="N", help="The newest of each of N weeks.")]
_Monthly = Annotated[str | None, Option(metavar="N", help="The newest of each of N months.")]
_Yearly = Annotated[str | None, Option(metavar="N", help="The newest of each of N years.")]
_Failed = Annotated[str | None, Option(metavar="AGE", help="Those of failed runs, up to this age.")]
_MaxAge = Annotated[
    str | None, Option(metavar="AGE", help="Nothing older than this, whatever else says so.")
]


@command
def forget(
    cli: Cli,
    runs: Annotated[
        list[str] | None, Argument(metavar="RUN", help="Only these runs; else all.")
    ] = None,
    keep_last: _Last = None,
    keep_within: _Within = None,
    keep_every: _Every = None,
    keep_hourly: _Hourly = None,
    keep_daily: _Daily = None,
    keep_weekly: _Weekly = None,
    keep_monthly: _Monthly = None,
    keep_yearly: _Yearly = None,
    keep_tag: Annotated[
        list[str] | None, Option(metavar="TAG", help="Those with it; a,b asks for both.")
    ] = None,
    keep_status: Annotated[
        list[str] | None, Option(metavar="STATUS", help="Those with this status.")
    ] = None,
    keep_failed: _Failed = None,
    max_age: _MaxAge = None,
    group_by: Annotated[str, Option(help="run, name or all: what is counted together.")] = "run",
    whole_run: Annotated[
        bool, Option("--whole-run", help="Delete the runs with exactly these ids, all of them.")
    ] = False,
    prune: Annotated[bool, Option("--prune", help="Free the space as well.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Drop checkpoints that no rule keeps.

    One rule that matches keeps a checkpoint. Rules count within each run. Never dropped are the
    newest checkpoint of a run and what is pinned. Without rules those of [retention] in
    holdfast.toml hold; if there are none either, nothing is dropped. Against an agent that you do
    not trust use --keep-within: whoever can save can push good checkpoints out of a count.
    """
    given = {
        "keep_last": keep_last,
        "keep_within": keep_within,
        "keep_every": keep_every,
        "keep_hourly": keep_hourly,
        "keep_daily": keep_daily,
        "keep_weekly": keep_weekly,
        "keep_monthly": keep_monthly,
        "keep_yearly": keep_yearly,
        "keep_tags": keep_tag,
        "keep_status": keep_status,
        "keep_failed": keep_failed,
        "max_age": max_age,
    }
    given = {name: value for name, value in given.items() if value}
    if whole_run:
        _delete(cli, runs or [], given, dry_run=dry_run, yes=yes)
        return
    chosen = chosen_runs(cli, runs or [])
    rules, origin = _rules(cli, given, group_by)
    _forget(cli, chosen, rules, origin, prune=prune, dry_run=dry_run, yes=yes)


def _rules(cli: Cli, given: dict[str, Any], group_by: str) -> tuple[Rules, str]:
    if given:
        return Rules.from_mapping({**given, "group_by": group_by}), "options"
    rules = cli.settings.rules()
    if rules.empty:
        cli.say("there are no rules, so nothing is dropped", Cell(" (give --keep-last)", "dim"))
    return rules, cli.settings.retention.origin


def chosen_runs(cli: Cli, names: Sequence[str]) -> list[RunInfo]:
    """The runs that are named, or all."""
    from holdfast.storage.base import RunQuery

    if not names:
        return list(cli.storage.runs(RunQuery()))
    return list({run.run_id: run for run in map(cli.finder.run, names)}.values())


def _forget(
    cli: Cli,
    runs: list[RunInfo],
    rules: Rules,
    origin: str,
    *,
    prune: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    from holdfast.checkpoint.retention import bulk as forgetting

    manager = cli.manager
    tz = datetime.now().astimezone().tzinfo or UTC
    now = datetime.now(UTC)
    decisions = forgetting.plan_forget(manager.reader, manager.retention, runs, rules, now, tz)
    gone = sum(not decision.keep for decision in decisions)
    document = Forget(
        dry_run=dry_run,
        rules=spelled(rules),
        origin=origin,
        kept=len(decisions) - gone,
        forgotten=gone,
        deleted_runs=[],
        decisions=[_row(decision) for decision in decisions],
    )
    if gone and not dry_run:
        if cli.for_people:
            cli.terminal.show(_text(decisions, document))
        cli.confirm(f"{gone} checkpoints would be dropped", yes=yes)
        many = len({one.header.run_id for one in decisions if not one.keep})
        with cli.progress("forgetting", many) as advance:
            for _ in forgetting.forget(manager.reader, manager.retention, decisions):
                advance()
        if prune:
            free(cli, runs)
        if cli.for_people:
            return
    cli.give(document, lambda: _text(decisions, document))


def _delete(
    cli: Cli, run_ids: list[str], given: dict[str, Any], *, dry_run: bool, yes: bool
) -> None:
    """Delete whole runs."""
    if given or not run_ids:
        raise UsageError("--whole-run takes the runs to delete, and no rules")
    runs = [_exactly(cli, run_id) for run_id in dict.fromkeys(run_ids)]
    names = ", ".join(run_ids)
    document = Forget(
        dry_run=dry_run,
        rules={},
        origin="options",
        kept=0,
        forgotten=sum(run.checkpoints for run in runs),
        deleted_runs=[run.run_id for run in runs],
        decisions=[],
    )
    if not dry_run:
        cli.confirm(f"{names} would be deleted, {document.forgotten} checkpoints", yes=yes)
        for run in runs:
            cli.manager.delete_run(run.run_id)
        cli.storage.compact()
    word = "would be deleted" if dry_run else "deleted"
    cli.give(document, lambda: [Line.of(Cell(names, "bold"), f" {word}")])


def _exactly(cli: Cli, run_id: str) -> RunInfo:
    """The run with that id: what is deleted is never guessed from a name or a prefix."""
    run = cli.manager.reader.run(run_id)
    if run is None:
        raise NotFoundError(
            f"no run has the id {run_id!r}", hint="holdfast runs shows whole ids", run_id=run_id
        )
    return run


def spelled(rules: Rules) -> dict[str, Any]:
    """The rules that are set, as `holdfast.toml` spells them."""
    from dataclasses import fields

    told: dict[str, Any] = {}
    for field in fields(rules):
        value = getattr(rules, field.name)
        if value not in (None, (), {}, False, "run"):
            told[field.name.replace("_", "-")] = _plain(value)
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {kind: spelled(rules) for kind, rules in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, int) else str(value)


def _row(decision: Decision) -> DecisionRow:
    header = decision.header
    return DecisionRow(
        run_id=header.run_id,
        checkpoint_id=header.id,
        scope=header.scope,
        step=header.step,
        kind=header.kind,
        saved_at=header.saved_at,
        stored_bytes=header.stored,
        keep=decision.keep,
        reasons=decision.reasons,
    )


def _text(decisions: list[Decision], document: Forget) -> Iterator[object]:
    columns = (
        Column("checkpoint", gives=True),
        Column("saved"),
        Column("kind"),
        Column(""),
        Column("reasons", gives=True),
    )
    rows = [
        [
            Cell(f"{header.run_id}@{header.step}", "bold" if keep else "dim"),
            Cell(when(header.saved_at), "dim"),
            header.kind,
            Cell("keep", "green") if keep else Cell("drop", "red"),
            ", ".join(reasons),
        ]
        for header, keep, reasons in decisions
    ]
    if rows:
        yield Table(columns, rows)
    stored = sum(header.stored for header, keep, _ in decisions if not keep)
    yield Line.of(
        f"keep {document.kept}, drop {document.forgotten}",
        Cell(f" ({size(stored)}; holdfast prune frees it)" if stored else "", "dim"),
    )


@command
def policy(
    cli: Cli,
    action: Annotated[str, Argument(metavar="show", help="What to do: show it.")] = "show",
) -> None:
    """Show the rules that `holdfast forget` applies when it is given none."""
    if action != "show":
        raise UsageError(f"there is no policy {action!r}", hint="holdfast policy show")
    rules = cli.settings.rules()
    document = Policy(
        origin=cli.settings.retention.origin, rules=spelled(rules), keeps_all=rules.empty
    )

    def text() -> Iterator[object]:
        if rules.empty:
            yield "everything is kept"
        for name, value in document.rules.items():
            yield Line.of(
                Cell(f"{name:<14}", "blue"),
                value if isinstance(value, str) else msgspec.json.encode(value).decode(),
            )
        yield Line.of(Cell(f"from {document.origin}", "dim"))

    cli.give(document, text)
