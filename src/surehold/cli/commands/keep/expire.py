"""`surehold expire`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.core.policy import Expiry
from surehold.engine.runs import plan_expiry, remove_runs
from surehold.errors import UsageError


class ExpiredRun(msgspec.Struct, kw_only=True):
    """A run that expires."""

    run_id: str
    name: str
    status: str
    saved_at: datetime
    stored_bytes: int


class Expired(ui.Document, kw_only=True, tag="expire"):
    dry_run: bool
    bytes: int
    kept: dict[str, int]
    """Old runs that stay, by reason: live, pin, group, due, damaged or changed."""
    runs: Annotated[list[ExpiredRun], ui.Rows("expired")]


@ui.command
def expire(
    cli: ui.Cli,
    older: Annotated[
        str | None, ui.Option(metavar="AGE", help="Last saved longer ago than this: 30d, 1y6m.")
    ] = None,
    status: Annotated[
        list[str] | None, ui.Option(help="Only with this status; completed, if none is given.")
    ] = None,
    name: Annotated[str | None, ui.Option(help="Only runs of this name.")] = None,
    keep_last: Annotated[
        int | None, ui.Option(metavar="N", help="Keep the newest N of each name.", min=0)
    ] = None,
    dry_run: ui.DryRun = False,
    yes: ui.Yes = False,
) -> None:
    """Remove whole runs that are old.

    A run that a process holds, that waits or is due later, that has a pinned checkpoint or is of a
    group stays. Runs are removed one at a time: interrupted anywhere, it continues when called
    again. Without options the rule of [expire] in surehold.toml applies, as in workers.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in (
            *(("older", older), ("status", status), ("name", name), ("keep_last", keep_last)),
        )
        if value is not None
    }
    rule = Expiry.from_mapping(given) if given else cli.settings.expiry()
    if rule is None:
        raise UsageError("no rule says which runs expire", hint="surehold expire --older 30d")
    kept: Counter[str] = Counter()
    going = []
    for one in plan_expiry(cli.manager, rule):
        if one.kept:
            kept[one.kept] += 1
        else:
            going.append(one)
    if going and not dry_run:
        stored = ui.size(sum(one.run.stored for one in going))
        cli.confirm(f"{ui.counted(len(going), 'run')} would be removed, {stored}", yes=yes)
        tried = cli.progress("removing", going, len(going))
        gone = {run.run_id for run in remove_runs(cli.manager, (one.run for one in tried))}
        removed = [one for one in going if one.run.run_id in gone]
        kept["changed"] += len(going) - len(removed)
        going = removed
        cli.storage.compact()
    document = Expired(
        dry_run=dry_run,
        bytes=sum(one.run.stored for one in going),
        kept=dict(+kept),
        runs=[
            ExpiredRun(
                run_id=one.run.run_id,
                name=one.run.name,
                status=one.status,
                saved_at=one.run.saved_at,
                stored_bytes=one.run.stored,
            )
            for one in going
        ],
    )
    cli.give(document, lambda: _text(document))


_SHOWN = 40


def _text(document: Expired) -> Iterator[object]:
    yield ui.Table.of(
        document.runs[:_SHOWN],
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=2),
        ui.Column("name", gives=True, rank=1),
        ui.Column("status", lambda one: ui.status_cell(one.status)),
        ui.Column("saved", lambda one: ui.Cell(ui.ago(one.saved_at), "dim")),
        ui.Column("size", lambda one: ui.size(one.stored_bytes), right=True),
    )
    if len(document.runs) > _SHOWN:
        yield ui.Cell(f"... {len(document.runs) - _SHOWN:,} more; --jsonl lists all", "dim")
    word = "would be removed" if document.dry_run else "removed"
    total = f"{ui.counted(len(document.runs), 'run')} {word}, {ui.size(document.bytes)}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in document.kept.items())
    yield ui.Line.of(total, ui.Cell(f" (kept: {reasons})" if reasons else "", "dim"))
