"""`holdfast runs`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec

from holdfast.cli.commands.see.documents import Runs
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Line,
    Option,
    Table,
    ago,
    command,
    money,
    size,
    status_cell,
)
from holdfast.errors import UsageError

__all__ = ["runs"]

_SHOWN = 20
_SORTS: dict[str, Callable[[Any], Any]] = {
    "began": lambda run: run.started_at,
    "saved": lambda run: run.saved_at,
    "steps": lambda run: run.step,
    "size": lambda run: run.stored_bytes,
    "cost": lambda run: run.dollars,
    "name": lambda run: (run.name, run.run_id),
}


@command
def runs(
    cli: Cli,
    name: Annotated[str | None, Argument(help="Only runs of this name.")] = None,
    status: Annotated[
        str | None, Option(help="Only runs with this status; stale ones too.")
    ] = None,
    search: Annotated[
        str | None, Option(metavar="TEXT", help="Text in id, name, node, tags or metadata.")
    ] = None,
    where: Annotated[
        list[str] | None,
        Option(metavar="KEY=VALUE", help="Metadata that a checkpoint of it has."),
    ] = None,
    sort: Annotated[str | None, Option(help=f"{', '.join(_SORTS)}; newest or most first.")] = None,
    limit: Annotated[int, Option("-n", "--limit", help="How many.", min=1)] = _SHOWN,
    all: Annotated[bool, Option("--all", "-a", help="All of them.")] = False,
) -> None:
    """List the runs, the one that began last first.

    A run that is running and whose process is gone is shown as stale.
    """
    from holdfast.checkpoint.inspect import summaries

    if sort is not None and sort not in _SORTS:
        raise UsageError(f"runs are not sorted by {sort!r}", hint=f"by {', '.join(_SORTS)}")
    storage, retention = cli.storage, cli.manager.retention
    found: Iterator[Any] = _found(cli, name, status, where or [])
    if sort is None and search is None and status is None:
        wanted = None if all else limit + 1
        chosen = summaries(retention, storage, islice(found, wanted))
    else:
        chosen = summaries(retention, storage, found)
        chosen = [run for run in chosen if _matches(run, search, status)]
        if sort is not None:
            chosen.sort(key=_SORTS[sort], reverse=sort != "name")
    more = not all and len(chosen) > limit
    shown = chosen if all else chosen[:limit]
    cli.give(Runs(runs=shown, more=more), lambda: _table(shown))
    if cli.for_people and more:
        cli.say(Cell("there are more: -n, --all, --search and --sort choose", "dim"))
    if cli.for_people and not shown:
        if name or status or search or where:
            cli.say("no run matches", Cell(" (holdfast runs lists all)", "dim"))
        else:
            cli.say(f"no runs in {cli.address}", Cell(" (holdfast demo makes some)", "dim"))


def _found(cli: Cli, name: str | None, status: str | None, where: list[str]) -> Iterator[Any]:
    from holdfast.core.records import read_status
    from holdfast.storage.base import RecordQuery, RunQuery

    storage = cli.storage
    asked = None if status is None else "running" if status == "stale" else read_status(status)
    query = RunQuery(name=name, status=asked)
    if not where:
        return iter(storage.runs(query))
    metadata = dict(map(_condition, where))
    seen = dict.fromkeys(
        header.run_id for header in storage.headers(RecordQuery(name=name, metadata=metadata))
    )
    return (
        run
        for run_id in seen
        for run in storage.runs(msgspec.structs.replace(query, run_id=run_id))
    )


def _condition(text: str) -> tuple[str, Any]:
    import json

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--where {text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _matches(run: Any, search: str | None, status: str | None) -> bool:
    if status == "stale" and run.status != "stale":
        return False
    if search is None:
        return True
    metadata = msgspec.json.encode(run.metadata).decode()
    texts = (run.run_id, run.name, run.node or "", *run.tags, metadata)
    return any(search.lower() in text.lower() for text in texts)


def _table(shown: list[Any]) -> Iterator[object]:
    if not shown:
        return
    columns = (
        Column("run", gives=True, rank=6),
        Column("name", gives=True, rank=1),
        Column("status"),
        Column("steps", right=True),
        Column("last checkpoint", gives=True, rank=3),
        Column("size", right=True, gives=True, rank=4),
        Column("cost", right=True, gives=True, rank=5),
        Column("forks", right=True, gives=True, rank=2),
    )
    yield Table(columns, [_row(run) for run in shown])
    total = sum(run.dollars for run in shown)
    if total:
        yield Line.of(Cell(f"{len(shown)} runs, {money(total)}", "dim"))


def _row(run: Any) -> list[object]:
    where = f" {run.node}" if run.node else ""
    origin = run.forked_from
    forks = str(run.forks) if run.forks else ""
    return [
        Cell(run.run_id, "bold"),
        f"{run.name} {f'(fork of {origin.run_id}@{origin.step})' if origin else ''}".strip(),
        status_cell(run.status),
        run.step,
        Cell(ago(run.saved_at) + where, "dim"),
        size(run.stored_bytes),
        money(run.dollars),
        forks,
    ]
