"""Schedules: runs that begin at times that a cron expression names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from surehold.core.records import check_run_id
from surehold.core.state import Lineage, Place
from surehold.doors.functions import AsyncWorkflow, Workflow
from surehold.engine.commit import save_draft
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import draft_at
from surehold.errors import ConflictError, UsageError
from surehold.lazy import extra
from surehold.storage.addresses import nearest
from surehold.storage.base import RecordQuery, newest_record

_FIRED = "fired"
"""The kind of the note that keeps the newest slot that was begun."""
_MOST = 100
"""Missed slots that are begun at once, at most."""
_KEPT = 10
"""Notes of the newest slots that stay in the journal; it is cleared when it has ten times more."""


class Schedule:
    """Begins a workflow's run at each time of *cron*; made by `surehold.schedule`."""

    def __init__(
        self,
        cron: str,
        workflow: Workflow[Any, Any] | AsyncWorkflow[Any, Any],
        start: Callable[..., Any],
        name: str,
        missed: Literal["skip", "last", "all"],
        timezone: str,
    ) -> None:
        """*start* queues a run with the *run_id* and the *storage* that it is given."""
        if missed not in ("skip", "last", "all"):
            raise UsageError(f"missed is {missed!r}", hint='give "skip", "last" or "all"')
        self.name = check_run_id(name)
        self.cron = cron
        self.workflow = workflow
        self.missed = missed
        self._start = start
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError):
            near = nearest(timezone, available_timezones())
            raise UsageError(
                f"there is no time zone {timezone!r}",
                hint=f"{near}names are as in Europe/Oslo; pip install tzdata if there are none",
            ) from None
        if next(self._slots(datetime.now(UTC)), None) is None:
            raise UsageError(f"{cron!r} names no time in the next 50 years")

    @property
    def run_id(self) -> str:
        """The run that keeps what the schedule has begun."""
        return f"schedule:{self.name}"

    def slot_id(self, slot: datetime) -> str:
        """The id of the run that belongs to a slot; the same in every process."""
        slot = slot.astimezone(UTC)
        seconds = f":{slot:%S}" if slot.second else ""
        return f"{self.name}@{slot:%Y-%m-%dT%H:%M}{seconds}Z"

    def fire(self, manager: CheckpointManager, *, now: datetime | None = None) -> list[str]:
        """Begin the runs that are due, 100 at most; gives their ids.

        Another process may have begun them. Slots from before the schedule was first seen are
        not due.
        """
        now = now or datetime.now(UTC)
        due = self._due(self._since(manager, now), now)
        if not due:
            return []
        wanted = due
        if self.missed == "skip":  # those of up to a minute ago; else no worker was there
            wanted = [slot for slot in due if now - slot <= timedelta(seconds=60)]
        own, saver = self.workflow.own_manager, manager
        if own is not None:
            settings = own.settings.with_hooks(manager.hook_manager)
            saver = CheckpointManager.on(manager.storage, settings)
        for slot in wanted:
            started: Any = self._start(run_id=self.slot_id(slot), storage=saver)
            if asyncio.iscoroutine(started):
                asyncio.run(started)
        manager.append_notes(self.run_id, (_fired(due[-1]),))
        self._clear(manager)
        return [self.slot_id(slot) for slot in wanted]

    def next(self, now: datetime | None = None) -> datetime:
        """The next time at which a run begins."""
        return next(self._slots(now or datetime.now(UTC)))

    def _since(self, manager: CheckpointManager, now: datetime) -> datetime:
        """The newest slot that was begun, or when the schedule was first seen."""
        newest = newest_record(manager.storage, self.run_id, _FIRED)
        if newest is not None:
            return datetime.fromtimestamp(float(newest.metadata[_FIRED]), UTC)
        place = Place(run_id=self.run_id, name=self.name, status="waiting")
        values = {"cron": self.cron, "workflow": self.workflow.entry_point}
        draft, seen = draft_at(place, values, Lineage(), schema=0), (_fired(now),)
        try:
            manager.perform(save_draft(manager.face, draft, force=True, notes=seen, new_run=True))
        except ConflictError:
            return self._since(manager, now)
        return now

    def _clear(self, manager: CheckpointManager) -> None:
        query = RecordQuery(run_id=self.run_id, kind=_FIRED, notes=True, limit=10 * _KEPT)
        notes = [*manager.storage.headers(query)]
        if len(notes) == query.limit:
            manager.storage.delete(self.run_id, erase=[note.seq for note in notes[_KEPT:]])

    def _due(self, since: datetime, now: datetime) -> list[datetime]:
        """The slots after *since* up to *now*: the first 100, or the last one."""
        if self.missed == "all":
            return [*islice(takewhile(lambda slot: slot <= now, self._slots(since)), _MOST)]
        # Backwards, however many slots were missed; a microsecond later, for one that is now.
        last = next(self._cron(now + timedelta(microseconds=1), reverse=True), since)
        return [last] if last > since else []

    def _slots(self, after: datetime) -> Iterator[datetime]:
        """The slots after a time; an hour that a clock repeats in autumn has one of each."""
        for slot in self._cron(after):
            if slot > after:
                after = slot
                yield slot

    def _cron(self, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        with extra("schedule", "schedules need cronsim"):
            from cronsim import CronSim, CronSimError
        try:
            found = CronSim(self.cron, start.astimezone(self._zone), reverse=reverse)
        except CronSimError as error:
            raise UsageError(
                f"{self.cron!r} is not a cron expression: {error}",
                hint='minute, hour, day, month, weekday: "0 3 * * *" is every night at 3',
            ) from error
        return (slot.astimezone(UTC) for slot in found)

    def __repr__(self) -> str:
        return f"<Schedule {self.name} {self.cron!r}>"


def _fired(slot: datetime) -> Note:
    return Note(kind=_FIRED, content={}, metadata={_FIRED: slot.timestamp()})


def schedule(
    cron: str,
    workflow: Workflow[Any, Any] | AsyncWorkflow[Any, Any],
    *args: Any,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    missed: Literal["skip", "last", "all"] = "last",
    timezone: str = "UTC",
    **kwargs: Any,
) -> Schedule:
    """Declare that *workflow* begins at every time that *cron* names.

    Keep it in a variable of a module that workers serve: each of them begins what is due, and the
    run's id follows from the time, so that there is one run for each however many workers there
    are. Arguments that do not fit the workflow are refused here. After a time without workers,
    *missed* says what begins: the ``last`` slot, ``all`` of them (100 at a time), or none
    (``skip``). The name of the schedule is the workflow's unless *name* is given; *timezone* is
    that of the expression.
    """
    if not isinstance(workflow, Workflow | AsyncWorkflow):
        raise UsageError(
            f"{workflow!r} cannot be scheduled", hint="give a function with @surehold.workflow"
        )
    workflow.check_start(*args, queue=queue, priority=priority, **kwargs)
    start = partial(workflow.start, *args, queue=queue, priority=priority, **kwargs)
    return Schedule(cron, workflow, start, name or workflow.name, missed, timezone)
