"""What a `ResilientCheckpointManager` remembers of its agent's steps, to tell drift by."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.agent.providers import Captured
from holdfast.checkpoint.journal import Note, Reader
from holdfast.core.policy import DriftMonitor, Observation
from holdfast.core.records import Header
from holdfast.core.values import decode
from holdfast.storage.base import RecordQuery

__all__ = ["AgentHistory", "read_task"]

_KIND = "observed"
_WITHOUT_WORK = ("completed", "done", "cancelled", "idle", "waiting", "paused")
_BACKLOG = ("unread", "pending", "queue", "backlog")


class AgentHistory:
    """The observations of one agent: those to look at, and those that are not stored yet.

    They are stored as a note beside each checkpoint, their values left out, so that an agent
    which is started again after every failure is seen to fail again and again.
    """

    def __init__(
        self, monitor: DriftMonitor, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monitor = monitor
        self.step = 0
        """How many steps were observed, over all starts of the agent."""
        self.quiet = 0
        """How many were observed since drift was last found or restored from."""
        self._monotonic = monotonic
        self._last: float | None = None
        self._unsaved: deque[Observation] = deque(maxlen=monitor.window)
        self._restarted = False
        self._seen: Captured | None = None
        self._seen_values: dict[str, Any] = {}

    def observe(self, captured: Captured, damage: str, given: Mapping[str, Any]) -> None:
        """Count a step, described by what is *given*, else by what the agent's task says."""
        now = self._monotonic()
        values = self._values(captured)
        facts = {**read_task(values), **read_backlog(values), **given}
        if given.keys() & {"action", "progress", "task"}:
            facts["idle"] = given.get("idle", False)
        if "seconds" not in facts and self._last is not None:
            facts["seconds"] = max(now - self._last, 0.0)
        self._last = now
        self.step += 1
        reasons = [f"{name} cannot be captured: {why}" for name, why in captured.missing.items()]
        observation = Observation(
            step=self.step,
            values=values,
            size=sum(map(len, captured.texts.values())),
            missing="; ".join(reasons),
            damage=damage,
            **facts,
        )
        self.monitor.observe(observation)
        self._unsaved.append(msgspec.structs.replace(observation, values=None))
        self.quiet += 1

    def _values(self, captured: Captured) -> dict[str, Any]:
        """What was captured; what has not changed since it was last seen is the same object."""
        before = self._seen.texts if self._seen is not None else {}
        values = {
            name: self._seen_values[name] if before.get(name) == text else decode(text, frozen=True)
            for name, text in captured.texts.items()
        }
        self._seen, self._seen_values = captured, values
        return values

    def step_of(self, captured: Captured) -> int:
        """The step that a state belongs to: the last that was observed, or one under way."""
        return self.step if captured == self._seen else self.step + 1

    def restart(self, captured: Captured, damage: str) -> None:
        """The agent was restored to *captured*: what was seen before does not count."""
        values = self._values(captured)
        task = read_task(values)
        task.pop("action", None)
        self.step += 1
        self.monitor.restart(Observation(step=self.step, values=values, damage=damage, **task))
        self._unsaved.clear()
        self._restarted = True
        self._last = None
        self.quiet = 0

    def note(self) -> Note | None:
        """What is to be stored beside a checkpoint."""
        if not self._unsaved and not self._restarted:
            return None
        return Note(
            kind=_KIND,
            content={"observations": list(self._unsaved)},
            step=self.step,
            metadata={"restarted": True} if self._restarted else {},
        )

    def stored(self) -> None:
        """The last `note` is in the journal."""
        self._unsaved.clear()
        self._restarted = False

    def take_up(self, reader: Reader, run_id: str) -> None:
        """Go on from what the journal says of earlier starts, back to the last restore."""
        storage = reader.storage
        for header in storage.headers(RecordQuery(run_id=run_id, limit=1)):
            self.step = header.step
        limit = self.monitor.window
        query = RecordQuery(run_id=run_id, kind=_KIND, notes=True, limit=limit)
        newest: list[Header] = []
        for header in storage.headers(query):
            newest.append(header)
            if header.metadata.get("restarted"):
                break
        for header in reversed(newest):
            for observation in _observations(reader, header):
                self.monitor.observe(observation)
                self.step = max(self.step, observation.step)


def read_task(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read task, action and progress of a step from the state's ``current_task``.

    >>> read_task({"current_task": {"id": 7, "progress_percentage": 40}})
    {'task': '7', 'progress': 40.0}
    >>> read_task({"current_task": {"id": 7, "status": "waiting"}})
    {'task': '7', 'idle': True}
    """
    task = values.get("current_task")
    if not isinstance(task, Mapping):
        return {}
    facts: dict[str, Any] = {}
    if task.get("id") is not None:
        facts["task"] = str(task["id"])
    if isinstance(task.get("action"), str):
        facts["action"] = task["action"]
    progress = _number(task.get("progress_percentage"))
    ended = task.get("status") in _WITHOUT_WORK or (progress is not None and progress >= 100)
    progress = _number(task.get("progress")) if progress is None else progress
    if progress is not None and not ended:
        facts["progress"] = progress
    if ended or (progress is None and task.get("id") is None):
        facts["idle"] = True
    return facts


def read_backlog(values: Mapping[str, Any]) -> dict[str, Any]:
    """Count the waiting messages in the state's ``mailbox``: a list or a number.

    >>> read_backlog({"mailbox": {"unread": ["a", "b"], "last_read": 7}})
    {'backlog': 2}
    >>> read_backlog({"mailbox": {"pending": 12}})
    {'backlog': 12}
    """
    mailbox = values.get("mailbox")
    if not isinstance(mailbox, Mapping):
        return {}
    for key in _BACKLOG:
        if key in mailbox:
            value = mailbox[key]
            count = len(value) if isinstance(value, list) else _number(value)
            if count is not None:
                return {"backlog": int(count)}
    return {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _observations(reader: Reader, header: Header) -> Iterator[Observation]:
    for record in reader.records(header.run_id, header.seq, header.seq):
        body = msgspec.json.decode(reader.sealer.open(record))
        yield from msgspec.convert(body["observations"], list[Observation])
