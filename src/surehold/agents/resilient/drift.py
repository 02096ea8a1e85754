"""An agent's steps as observations, kept over restarts, and the drift in them."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from surehold.agents.resilient.providers import Captured
from surehold.core.policy import DriftMonitor, DriftReport, Finding, Observation
from surehold.core.records import Header
from surehold.core.values import decode
from surehold.engine.journal import Note, Reader
from surehold.engine.runs import OpenRun
from surehold.errors import DataError, NotFoundError, UsageError
from surehold.storage.base import RecordQuery

logger = logging.getLogger("surehold.checkpoint")

_FACTS = {"action", "progress", "failed", "seconds", "task", "idle", "backlog"}

_KIND = "observed"
_WITHOUT_WORK = ("completed", "done", "cancelled", "idle", "waiting", "paused")
_BACKLOG = ("unread", "pending", "queue", "backlog")


class AgentHistory:
    """The observations of one agent, including those not stored yet.

    Each checkpoint stores them as a note, without values, so that an agent which is restarted
    after every failure is seen to fail repeatedly.
    """

    def __init__(
        self, monitor: DriftMonitor, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monitor = monitor
        self.step = 0
        """Number of steps observed, over all starts of the agent."""
        self.quiet = 0
        """Number of steps observed since the last drift or restore."""
        self._monotonic = monotonic
        self._last: float | None = None
        self._unsaved: deque[Observation] = deque(maxlen=monitor.window)
        self._restarted = False
        self._seen: Captured | None = None
        self._seen_values: dict[str, Any] = {}

    def observe(self, captured: Captured, damage: str, given: Mapping[str, Any]) -> None:
        """Count a step, described by *given* and otherwise by the agent's task."""
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
        """Decode the captured texts, reusing the values of unchanged ones."""
        before = self._seen.texts if self._seen is not None else {}
        values = {
            name: self._seen_values[name] if before.get(name) == text else decode(text, frozen=True)
            for name, text in captured.texts.items()
        }
        self._seen, self._seen_values = captured, values
        return values

    def step_of(self, captured: Captured) -> int:
        """Return the step a state belongs to: the last observed one, or the one under way."""
        return self.step if captured == self._seen else self.step + 1

    def restart(self, captured: Captured, damage: str) -> None:
        """Start over after a restore to *captured*."""
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
        """Return the note to store beside a checkpoint."""
        if not self._unsaved and not self._restarted:
            return None
        return Note(
            kind=_KIND,
            content={"observations": list(self._unsaved)},
            step=self.step,
            metadata={"restarted": True} if self._restarted else {},
        )

    def stored(self) -> None:
        """Clear what the last `note` stored."""
        self._unsaved.clear()
        self._restarted = False

    def load(self, reader: Reader, run_id: str, newest: Header | None) -> None:
        """Load the observations of earlier starts, back to the last restore.

        *newest* is the newest checkpoint, if it is known.
        """
        storage = reader.storage
        one = RecordQuery(run_id=run_id, scope="", limit=1)
        for header in storage.headers(one) if newest is None else (newest,):
            self.step = header.step
        limit = self.monitor.window
        query = RecordQuery(run_id=run_id, kind=_KIND, notes=True, limit=limit)
        notes: list[Header] = []
        for header in storage.headers(query):
            notes.append(header)
            if header.metadata.get("restarted"):
                break
        for header in reversed(notes):
            for record in reader.records(run_id, header.seq, header.seq):
                body = msgspec.json.decode(reader.sealer.open(record))
                for observation in msgspec.convert(body["observations"], list[Observation]):
                    self.monitor.observe(observation)
                    self.step = max(self.step, observation.step)


class AgentDrift:
    """Drift detection for one agent: history, last verification, last warnings."""

    def __init__(
        self,
        held: OpenRun,
        monitor: DriftMonitor,
        monotonic: Callable[[], float],
        verify_every: float,
    ) -> None:
        self._held = held
        self._manager = held.manager
        self._run_id = held.run_id
        self._monotonic = monotonic
        self._verify_every = verify_every
        self._verified: tuple[float, str] | None = None
        self._monitor = monitor
        self._warned: set[tuple[str, str]] = set()
        self._is_failing = False
        self.is_described = False
        """True if `observe` described the step that `detect` is to look at."""
        self.since: int | None = None
        """The step the drift began with that the last `detect` found."""
        self.restored_seq: int | None = None
        """The checkpoint that the last reaction restored, until a window without drift."""

    def observe(self, captured: Captured, facts: Mapping[str, Any]) -> None:
        """Count a step."""
        self.history.observe(captured, self._damage(), facts)

    def detect(self) -> DriftReport:
        """Return the report, log new warnings, and remember since when the agent drifts."""
        self.is_described = False
        report = self.report()
        found = [one for one in report.findings if one.level == "warn"]
        warnings = {(one.detector, one.about): one for one in found}
        for key, one in warnings.items():
            if key not in self._warned:
                logger.warning("agent %s: %s", self._run_id, one)
        self._warned = set(warnings)
        self.since = report.since if report else None
        return report

    def warn_of_failures(self) -> None:
        """Log that the agent fails again and again, once until it does not.

        A loop that fails in every cycle may never come to its `detect`.
        """
        findings = self.report().findings
        failing = next((one for one in findings if one.detector == "errors"), None)
        is_failing = failing is not None and failing.level != "note"
        if is_failing and not self._is_failing:
            logger.warning("agent %s fails again and again: %s", self._run_id, failing)
        self._is_failing = is_failing

    def report(self) -> DriftReport:
        """Return the findings about the last steps."""
        return self.history.monitor.look()

    def confirmed(self, drifts: bool) -> DriftReport:
        """Return the report; it names the agent's own check if only that found drift."""
        report = self.report()
        history = self.history
        if not drifts:
            if history.quiet >= history.monitor.window:
                self.restored_seq = None
            return report
        history.quiet = 0
        if report:
            return report
        own = Finding(
            detector="detect_drift",
            saw="the agent's own check found drift",
            confidence=1.0,
            since=history.step,
        )
        return DriftReport(findings=(own,))

    def restart(self, captured: Captured) -> None:
        """Start over after a restore to *captured*."""
        self.history.restart(captured, self._damage())
        self.since = None

    @cached_property
    def history(self) -> AgentHistory:
        """The observations, with those of earlier starts."""
        history = AgentHistory(self._monitor, self._monotonic)
        try:
            history.load(self._manager.reader, self._run_id, self._held.newest)
        except DataError as error:
            # The next verification reports the damage; this call must not fail on it.
            logger.warning("agent %s: its history cannot be read: %s", self._run_id, error)
        return history

    def _damage(self) -> str:
        """Describe the damage in the stored records, as of the last verification."""
        now = self._monotonic()
        if self._verified is None or now - self._verified[0] >= self._verify_every:
            self._verified = (now, self._verify())
        return self._verified[1]

    def _verify(self) -> str:
        try:
            return "; ".join(self._manager.verify(self._run_id)[0].problems)
        except NotFoundError:  # nothing is saved yet
            return ""
        except DataError as error:
            return error.message


def check_facts(facts: Mapping[str, Any]) -> None:
    """Refuse facts that no `Observation` has, or of another type."""
    unknown = set(facts) - _FACTS
    if unknown:
        raise UsageError(
            f"observe() has no option {', '.join(sorted(unknown))}",
            hint=f"it takes {', '.join(sorted(_FACTS))}",
        )
    try:
        msgspec.convert(facts, Observation)
    except msgspec.ValidationError as error:
        raise UsageError(f"observe() cannot take that: {error}") from None


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
