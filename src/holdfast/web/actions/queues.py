"""The actions on queues: pause one, start it again, queue a dead letter again."""

from __future__ import annotations

import shlex

import msgspec

from holdfast.core.policy import QueueInfo
from holdfast.errors import NotFoundError
from holdfast.executors import queues, requeue, set_queue
from holdfast.storage.queueing import Queueing
from holdfast.web.actions.plan import ActionPlan, note_action, page_of, run_in
from holdfast.web.forms import Given
from holdfast.web.site import Site


class PauseAction:
    """Starts nothing more of a queue, or starts it again."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def ask(self, given: Given) -> ActionPlan:
        info = self._queue(given)
        word = "Resume" if info.settings.paused else "Pause"
        does = "Workers start its runs again" if info.settings.paused else "Workers start no more"
        return ActionPlan(
            title=f"{word} queue {info.name}",
            what=[
                f"{does}; {info.ready:,} are ready.",
                f"The {info.running:,} runs that execute are left alone.",
            ],
            command=shlex.join(["holdfast", "queue", word.lower(), info.name]),
            python=f"set_queue({info.name!r}, QueueSettings(paused={not info.settings.paused}))",
            button=word,
            hidden={"queue": info.name, "paused": "" if info.settings.paused else "1"},
            back="/queues",
        )

    def do(self, given: Given, who: str) -> str:
        info = self._queue(given)
        settings = msgspec.structs.replace(info.settings, paused=bool(given.get("paused")))
        set_queue(info.name, settings, storage=self._site.manager)
        return "/queues"

    def _queue(self, given: Given) -> QueueInfo:
        name = given.get("queue", "")
        for info in queues(self._site.manager):
            if info.name == name:
                return info
        raise NotFoundError(f"there is no queue {name!r}")


class RequeueAction:
    """Queues a dead letter, or a cancelled or waiting run, to be continued at once."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def ask(self, given: Given) -> ActionPlan:
        run = run_in(self._site, given)
        storage = self._site.manager.storage
        entry = storage.entry_of(run.run_id) if isinstance(storage, Queueing) else None
        problem = "" if entry is not None else "The run is in no queue."
        if entry is not None and entry.state in ("ready", "running"):
            problem = f"The run is {entry.state} already."
        return ActionPlan(
            title=f"Requeue {run.run_id}",
            what=[
                "The next worker that serves it continues the run, from its newest checkpoint.",
                *([f"It failed {entry.failures} times: {entry.reason}"] if entry else []),
            ],
            command=shlex.join(["holdfast", "queue", "requeue", run.run_id]),
            python=f"requeue({run.run_id!r})",
            button="Requeue",
            hidden={"id": run.run_id},
            problem=problem,
            back="/queues",
        )

    def do(self, given: Given, who: str) -> str:
        run = run_in(self._site, given)
        requeue(run.run_id, storage=self._site.manager)
        note_action(self._site, run.run_id, "queued it again", who, run.step)
        return page_of(run.run_id)
