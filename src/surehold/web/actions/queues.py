"""The actions on queues: pause or limit one, cancel a run, requeue a dead letter."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.policy import QueueEntry, QueueInfo, QueueSettings
from surehold.engine.runs import note_action
from surehold.errors import NotFoundError, UsageError
from surehold.executors import cancel, queues, requeue, set_queue
from surehold.storage.base import RunInfo
from surehold.storage.queueing import queues_in
from surehold.web.actions.plan import Action, ActionPlan, page_of, run_in, shell
from surehold.web.forms import Field, Given
from surehold.web.site import Site


class PauseAction(Action):
    """Starts nothing more of a queue, or starts it again."""

    def ask(self, given: Given) -> ActionPlan:
        info = _queue_in(self._site, given)
        word = "Resume" if info.settings.paused else "Pause"
        does = "Workers start its runs again" if info.settings.paused else "Workers start no more"
        return ActionPlan(
            title=f"{word} queue {info.name}",
            what=[
                f"{does}; {info.ready:,} are ready.",
                f"The {info.running:,} runs that execute are left alone.",
            ],
            command=shell("queue", word.lower(), info.name),
            python=f"set_queue({info.name!r}, QueueSettings(paused={not info.settings.paused}))",
            button=word,
            hidden={"queue": info.name, "paused": "" if info.settings.paused else "1"},
            back="/queues",
        )

    def do(self, given: Given, who: str) -> str:
        info = _queue_in(self._site, given)
        settings = msgspec.structs.replace(info.settings, paused=bool(given.get("paused")))
        set_queue(info.name, settings, storage=self._site.manager)
        return "/queues"


def _queue_in(site: Site, given: Given) -> QueueInfo:
    name = given.get("queue", "")
    for info in queues(site.manager):
        if info.name == name:
            return info
    raise NotFoundError(f"there is no queue {name!r}")


_LIMITS = {
    "concurrency": ("Runs at a time", int),
    "key_concurrency": ("Runs of a key at a time", int),
    "rate": ("Starts in each period", int),
    "period": ("Period in seconds", float),
    "attempts": ("Failures until a run is a dead letter", int),
}


class LimitAction(Action):
    """Sets the limits of a queue."""

    def ask(self, given: Given) -> ActionPlan:
        info = _queue_in(self._site, given)
        now = {name: getattr(info.settings, name) for name in _LIMITS}
        return ActionPlan(
            title=f"Limit queue {info.name}",
            what=[
                "The limits hold for all workers together, from the next start on.",
                f"The {info.running:,} runs that execute are left alone.",
            ],
            command=shell("queue", "limit", info.name, "--concurrency", "N"),
            python=f"set_queue({info.name!r}, QueueSettings(concurrency=N))",
            button="Set the limits",
            hidden={"queue": info.name},
            fields=[
                Field(
                    name=name,
                    label=label,
                    value="" if now[name] is None else f"{now[name]:g}",
                    help="empty: no limit" if now[name] is None or kind is int else "",
                )
                for name, (label, kind) in _LIMITS.items()
            ],
            back="/queues",
        )

    def do(self, given: Given, who: str) -> str:
        info = _queue_in(self._site, given)
        changes: dict[str, Any] = {}
        for name, (label, kind) in _LIMITS.items():
            text = given.get(name, "").strip()
            try:
                changes[name] = kind(text) if text else None
            except ValueError:
                raise UsageError(f"{label} is {text!r}", hint="give a number, or none") from None
        for name in ("period", "attempts"):  # these are never without a value
            changes[name] = changes[name] or getattr(info.settings, name)
        settings = QueueSettings(**{**msgspec.structs.asdict(info.settings), **changes})
        set_queue(info.name, settings, storage=self._site.manager)
        return "/queues"


def _queued_run(
    site: Site, given: Given, done: tuple[str, ...]
) -> tuple[RunInfo, QueueEntry | None, str]:
    """A run, its entry, and the reason against: no entry, or *done* already."""
    run = run_in(site, given)
    kept = queues_in(site.manager.storage)
    entry = kept.entry_of(run.run_id) if kept is not None else None
    problem = "" if entry is not None else "The run is in no queue."
    if entry is not None and entry.state in done:
        problem = f"The run is {entry.state} already."
    return run, entry, problem


def _plan_for(run: RunInfo, verb: str, what: list[str], button: str, problem: str) -> ActionPlan:
    """The plan of an action on a queued run that the function and command *verb* do."""
    return ActionPlan(
        title=f"{verb.capitalize()} {run.run_id}",
        what=what,
        command=shell("queue", verb, run.run_id),
        python=f"{verb}({run.run_id!r})",
        button=button,
        hidden={"id": run.run_id},
        problem=problem,
        destroys=verb == "cancel",
        back="/queues",
    )


class CancelAction(Action):
    """Asks for a queued run to end."""

    def ask(self, given: Given) -> ActionPlan:
        run, _, problem = _queued_run(self._site, given, ("cancelled",))
        what = [
            "The run ends at its next step if it is executed, else before it starts.",
            "It is saved as interrupted, and no worker continues it until it is requeued.",
        ]
        return _plan_for(run, "cancel", what, "Cancel the run", problem)

    def do(self, given: Given, who: str) -> str:
        run = run_in(self._site, given)
        cancel(run.run_id, by=who, storage=self._site.manager)
        return page_of(run.run_id)


class RequeueAction(Action):
    """Queues a dead letter, or a cancelled or waiting run, to be continued at once."""

    def ask(self, given: Given) -> ActionPlan:
        run, entry, problem = _queued_run(self._site, given, ("ready", "running"))
        what = ["The next worker that serves it continues the run, from its newest checkpoint."]
        what += [f"It failed {entry.failures} times: {entry.reason}"] if entry else []
        return _plan_for(run, "requeue", what, "Requeue", problem)

    def do(self, given: Given, who: str) -> str:
        run = run_in(self._site, given)
        requeue(run.run_id, by=who, storage=self._site.manager)
        note_action(self._site.manager, run.run_id, "queued it again", who, step=run.step)
        return page_of(run.run_id)
