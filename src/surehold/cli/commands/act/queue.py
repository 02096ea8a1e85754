"""`surehold queue`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from surehold.cli import framework as ui
from surehold.core.policy import QueueSettings, WorkerProcess
from surehold.errors import NotFoundError, UsageError
from surehold.executors import (
    cancel,
    list_workers,
    queue_entries,
    queues,
    rebuild_queues,
    requeue,
    set_queue,
    unserved,
)
from surehold.storage.addresses import nearest
from surehold.views.queues import QueueDocument, QueueList, QueueRun, WorkerList


class Requeued(ui.Document, kw_only=True, tag="requeued"):
    """``queue requeue``, ``queue cancel``, ``queue rebuild``"""

    runs: list[str]
    entries: int


_LISTED = 100
_ALIVE = ("ready", "waiting", "running")
_STATES = (*_ALIVE, "dead", "cancelled")


@ui.command
def queue(
    cli: ui.Cli,
    action: Annotated[
        str,
        ui.Argument(
            help="list, show, dead, workers, pause, resume, limit, requeue, cancel, rebuild."
        ),
    ] = "list",
    names: Annotated[
        list[str] | None, ui.Argument(metavar="NAME", help="A queue; for requeue and cancel, runs.")
    ] = None,
    state: Annotated[
        str | None, ui.Option(metavar="STATE", help="Only runs in this state: ready, waiting, ...")
    ] = None,
    limit: Annotated[int, ui.Option("-n", "--limit", help="How many runs.", min=1)] = (_LISTED),
    concurrency: Annotated[
        int | None, ui.Option(help="Runs at a time; 0 for any number.", min=0)
    ] = None,
    key_concurrency: Annotated[
        int | None, ui.Option(help="Runs of a key at a time; 0 for any.", min=0)
    ] = None,
    rate: Annotated[
        str | None,
        ui.Option(metavar="N/SECONDS", help="Starts in a time, as in 100/60; 0 for any."),
    ] = None,
    attempts: Annotated[
        int | None, ui.Option(help="Failures until a run is a dead letter.", min=1)
    ] = None,
    all_dead: Annotated[bool, ui.Option("--dead", help="requeue: all dead letters.")] = False,
    within: Annotated[
        str | None, ui.Option("--in", metavar="QUEUE", help="requeue, cancel: runs of this queue.")
    ] = None,
    code: Annotated[
        str | None,
        ui.Option(metavar="MODULE:NAME[@N]", help="requeue, cancel: runs of this code."),
    ] = None,
    dry_run: Annotated[
        bool, ui.Option("--dry-run", help="requeue, cancel: only say which runs.")
    ] = False,
    yes: ui.Yes = False,
) -> None:
    """See and steer the queues of runs.

    Without an action it lists them, and says which runs no worker takes because none serves their
    queue or their code. show NAME lists the runs of a queue, dead the dead letters with their
    reasons, workers the processes that execute runs or wait for some. pause NAME starts no more
    runs of a queue, resume NAME starts them again. limit NAME sets how many run at a time.
    cancel RUN ends runs at their next step; requeue RUN queues dead letters and cancelled runs
    again. Instead of RUN, --in, --code and --state choose many. Without --state, cancel takes runs
    that are ready, waiting or running, and requeue takes dead letters. rebuild makes the index
    again from the journals.
    """
    chosen = _Chosen(names or [], within, code, state, dry_run=dry_run, yes=yes)
    actions: dict[str, Callable[[], None]] = {
        "list": lambda: _list(cli),
        "show": lambda: _show(cli, _one(action, names), state, limit),
        "dead": lambda: _show(cli, names[0] if names else "", "dead", limit),
        "workers": lambda: _workers(cli),
        "pause": lambda: _change(cli, _one(action, names), paused=True),
        "resume": lambda: _change(cli, _one(action, names), paused=False),
        "limit": lambda: _change(
            cli, _one(action, names), **_limits(concurrency, key_concurrency, rate, attempts)
        ),
        "requeue": lambda: _requeue(cli, chosen, all_dead=all_dead),
        "cancel": lambda: _change_each(cli, chosen, _ALIVE, cancel, "cancel", "cancelled"),
        "rebuild": lambda: _rebuild(cli),
    }
    if action not in actions:
        raise UsageError(
            f"queue has no action {action!r}",
            hint=f"{nearest(action, actions)}surehold queue --help",
        )
    actions[action]()


def _one(action: str, names: list[str] | None) -> str:
    if not names or len(names) != 1:
        raise UsageError(f"queue {action} is for one queue", hint=f"surehold queue {action} NAME")
    return names[0]


def _limits(
    concurrency: int | None, key_concurrency: int | None, rate: str | None, attempts: int | None
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in (("concurrency", concurrency), ("key_concurrency", key_concurrency)):
        if value is not None:
            given[name] = value or None
    if rate is not None:
        count, _, seconds = rate.partition("/")
        try:
            given["rate"] = int(count) or None
            given["period"] = float(seconds or 60)
            QueueSettings(rate=given["rate"], period=given["period"])
        except (ValueError, UsageError):
            raise UsageError(f"--rate is {rate!r}", hint="give N/SECONDS, as in 100/60") from None
    if attempts is not None:
        given["attempts"] = attempts
    if not given:
        raise UsageError("there is no limit to set", hint="give --concurrency, --rate or others")
    return given


def _list(cli: ui.Cli) -> None:
    found, left = queues(cli.manager), unserved(cli.manager)

    def text() -> Iterator[object]:
        yield ui.Table.of(
            found,
            ui.Column("queue", lambda one: ui.Cell(one.name, "bold"), gives=True, rank=3),
            *map(ui.Column, ("ready", "running", "waiting")),
            ui.Column("dead", lambda one: ui.Cell(one.dead, "red" if one.dead else "dim")),
            ui.Column("cancelled"),
            ui.Column("limits", lambda one: _limit_text(one.settings), gives=True),
        )
        for one in left:
            runs = f"{ui.counted(one.runs, 'ready run')} of {one.queue}"
            yield ui.Line.of(ui.Cell(f"no worker serves {one.target}: ", "yellow"), runs)

    cli.give(QueueList(queues=found, unserved=left), text)
    if cli.for_people and not found:
        cli.say("there are no queues")


def _limit_text(settings: QueueSettings) -> str:
    told = ["paused"] if settings.paused else []
    if settings.concurrency is not None:
        told.append(f"{settings.concurrency} at a time")
    if settings.key_concurrency is not None:
        told.append(f"{settings.key_concurrency} of a key")
    if settings.rate is not None:
        told.append(f"{settings.rate} in {settings.period:g} s")
    if settings.attempts != QueueSettings().attempts:
        told.append(ui.counted(settings.attempts, "attempt"))
    return ", ".join(told)


def _show(cli: ui.Cli, name: str, state: str | None, limit: int) -> None:
    if state is not None and state not in _STATES:
        raise UsageError(f"there is no state {state!r}", hint=", ".join(_STATES))
    known = {one.name: one.settings for one in queues(cli.manager)}
    if name and name not in known:
        raise NotFoundError(
            f"there is no queue {name!r}", hint=f"{nearest(name, known)}surehold queue lists them"
        )
    wanted: Any = state
    found = queue_entries(name or None, state=wanted, limit=limit, storage=cli.manager)
    document = QueueDocument(
        queue=name,
        settings=known.get(name, QueueSettings()),
        runs=[QueueRun.of(entry) for entry in found],
    )
    cli.give(document, lambda: _entries(document))
    if cli.for_people and not found:
        cli.say(f"there are no {'dead letters' if state == 'dead' else 'such runs'}")


def _entries(document: QueueDocument) -> Iterator[object]:
    if limits := _limit_text(document.settings):
        yield ui.Line.of(ui.Cell(document.queue, "bold"), f": {limits}")
    yield ui.Table.of(
        document.runs,
        ui.Column("run", lambda one: ui.Cell(one.run_id, "bold"), gives=True, rank=3),
        ui.Column("state", lambda one: ui.Cell(_state(one), "red" if one.state == "dead" else "")),
        ui.Column("code", lambda one: one.target, gives=True, rank=1),
        ui.Column("priority"),
        ui.Column("key", gives=True),
        ui.Column("failures"),
        ui.Column("due", lambda one: ui.when(one.due) if one.due is not None else ""),
        ui.Column("reason", gives=True, enough=24),
    )


def _state(run: QueueRun) -> str:
    """The state of a run; one that ends at its next step is said to be cancelled."""
    return f"{run.state}, cancelled" if run.cancelled and run.state != "cancelled" else run.state


def _workers(cli: ui.Cli) -> None:
    found = list_workers(cli.manager)

    def name(one: WorkerProcess) -> ui.Cell:
        return ui.Cell(f"{one.host}:{one.pid}", "bold")

    def executed(one: WorkerProcess) -> str:
        return f"{len(one.runs)} of {one.concurrency}" if one.concurrency else str(len(one.runs))

    table = ui.Table.of(
        found,
        ui.Column("worker", name, gives=True, rank=3),
        ui.Column("runs", executed),
        ui.Column("queues", lambda one: ", ".join(one.queues), gives=True, rank=1),
        ui.Column("serves", lambda one: ", ".join(one.serves), gives=True),
        ui.Column("seen", lambda one: ui.when(one.seen_at) if one.seen_at is not None else ""),
    )
    cli.give(WorkerList(workers=found), lambda: [table])
    if cli.for_people and not found:
        cli.say("there are no workers")


def _change(cli: ui.Cli, name: str, **changes: Any) -> None:
    known = {one.name: one.settings for one in queues(cli.manager)}
    settings = msgspec.structs.replace(known.get(name, QueueSettings()), **changes)
    set_queue(name, settings, storage=cli.manager)
    line = ui.Line.of(ui.Cell(name, "bold"), f": {_limit_text(settings) or 'no limits'}")
    cli.give(QueueDocument(queue=name, settings=settings, runs=[]), lambda: [line])


class _Chosen(NamedTuple):
    """The runs that a change is for: named ones, or those that match."""

    runs: list[str]
    queue: str | None
    code: str | None
    state: str | None
    dry_run: bool
    yes: bool

    def ids(self, cli: ui.Cli, states: tuple[str, ...], action: str) -> list[str]:
        """Their ids; of those that match, only ones in *states*, unless a state was given."""
        if self.state is not None and self.state not in _STATES:
            raise UsageError(f"there is no state {self.state!r}", hint=", ".join(_STATES))
        if (self.queue, self.code, self.state) == (None, None, None):
            if not self.runs:
                hint = f"surehold queue {action} RUN, or --in QUEUE"
                raise UsageError("no run is named", hint=hint)
            return self.runs
        if self.runs:
            raise UsageError(
                "runs are both named and selected by options", hint="name them, or select them"
            )
        wanted = states if self.state is None else (self.state,)
        return [
            entry.run_id
            for entry in queue_entries(self.queue, storage=cli.manager)
            if entry.state in wanted
            and self.code in (None, entry.target, entry.target.rpartition("@")[0])
        ]


def _requeue(cli: ui.Cli, chosen: _Chosen, *, all_dead: bool) -> None:
    if all_dead:
        dead = queue_entries(state="dead", storage=cli.manager)
        runs = dict.fromkeys([*chosen.runs, *(entry.run_id for entry in dead)])
        chosen = _Chosen([*runs], None, None, None, chosen.dry_run, chosen.yes)
        if not runs:
            cli.give(Requeued(runs=[], entries=0), lambda: ["there are no dead letters"])
            return
    _change_each(cli, chosen, ("dead",), requeue, "requeue", "requeued")


def _change_each(
    cli: ui.Cli,
    chosen: _Chosen,
    states: tuple[str, ...],
    change: Callable[..., Any],
    action: str,
    word: str,
) -> None:
    runs = chosen.ids(cli, states, action)
    if not chosen.dry_run:
        if runs and not chosen.runs:
            cli.confirm(f"{ui.counted(len(runs), 'run')} would be {word}", yes=chosen.yes)
        for run_id in cli.progress(action, runs, len(runs)):
            change(run_id, by=cli.who, storage=cli.manager)
    told = f"would be {word}: " if chosen.dry_run else f"{word} "
    document = Requeued(runs=runs, entries=len(runs))
    cli.give(document, lambda: [ui.Line.of(told, ui.Cell(run, "bold")) for run in runs])


def _rebuild(cli: ui.Cli) -> None:
    count = rebuild_queues(cli.manager)
    cli.give(Requeued(runs=[], entries=count), lambda: [f"{count} queued runs"])
