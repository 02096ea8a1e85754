"""`ResilientCheckpointManager`: for an agent with a plain loop of its own, which is to survive the
death of its process, a failing medium, and its own mistakes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.checkpoint.agent.drift import AgentHistory
from holdfast.checkpoint.agent.manager import AgentCheckpoints
from holdfast.checkpoint.agent.providers import Captured
from holdfast.checkpoint.agent.restore import PARTIAL, Operation, Restored
from holdfast.checkpoint.crypto import Key
from holdfast.checkpoint.hooks import HookManager
from holdfast.checkpoint.journal import Note
from holdfast.checkpoint.operations import OnSaveFailure
from holdfast.checkpoint.repair import OnCorrupt
from holdfast.core.policy import (
    Detector,
    DriftMonitor,
    DriftPolicy,
    DriftReport,
    Finding,
    Observation,
    Rules,
    Sensitivity,
    check_policy,
    default_detectors,
)
from holdfast.core.records import Header
from holdfast.errors import DataError, DriftError, UsageError
from holdfast.storage.base import RecordQuery, Storage, default_address

__all__ = ["Operation", "ResilientCheckpointManager", "Restored"]

logger = logging.getLogger("holdfast.checkpoint")

_FALLBACK = "file:.holdfast/fallback"
_FACTS = {"action", "progress", "failed", "seconds", "task", "idle", "backlog"}


class ResilientCheckpointManager(AgentCheckpoints):
    """The checkpoints of one agent, and an eye on whether it drifts.

    The agent's state is in four dicts that it may change in place (`current_task`, `mailbox`,
    `operational_context`, `memory`), in what a subclass returns from `_get_operational_context`
    and its like, and in what `register_provider` adds. Retention is by kind: the last three
    routine checkpoints, recovery ones for seven days, pre_operation ones until they are released.

    *fallbacks* are the addresses of storages that each keep a copy, and take the place of *storage*
    while it fails. By default there is one, in ``.holdfast/fallback``; where *storage* is given
    there is none, unless it is a `ResilientStorage`. A save that fails is tried again.

    *detectors*, *drift_sensitivity* and *drift_window* say what counts as drift, *on_drift* what
    `check_drift` does about it; stored records are verified every *verify_every* seconds. *clock*
    and *monotonic* are for those who bring their own time.

    >>> manager = ResilientCheckpointManager("agent-3", "memory://")
    >>> manager.memory["notes"] = ["kelp"]
    >>> checkpoint_id = manager.create_checkpoint("routine")
    >>> manager.memory.clear()
    >>> _ = manager.restore_checkpoint(checkpoint_id)
    >>> manager.memory
    {'notes': ['kelp']}
    """

    def __init__(
        self,
        agent_id: str,
        storage: Storage | str | None = None,
        *,
        fallbacks: Sequence[str] | None = None,
        retention: Rules | None = None,
        hook_manager: HookManager | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "retry",
        on_corrupt: OnCorrupt = "fail",
        detectors: Iterable[Detector | type[Any]] | None = None,
        drift_sensitivity: Sensitivity | float = "normal",
        drift_window: int = 50,
        on_drift: DriftPolicy = "warn",
        verify_every: float = 300.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_policy(on_drift)
        if not verify_every > 0:
            raise UsageError(f"verify_every is {verify_every!r}", hint="give more than 0 seconds")
        monitor = DriftMonitor(
            default_detectors() if detectors is None else detectors,
            sensitivity=drift_sensitivity,
            window=drift_window,
        )
        super().__init__(
            agent_id,
            _with_fallbacks(storage, fallbacks),
            retention=retention,
            hook_manager=hook_manager,
            encryption_key=encryption_key,
            old_keys=old_keys,
            on_save_failure=on_save_failure,
            on_corrupt=on_corrupt,
            clock=clock,
        )
        self.on_drift: DriftPolicy = on_drift
        self._monotonic = monotonic
        self._verify_every = verify_every
        self._verified: tuple[float, str] | None = None
        self._history = AgentHistory(monitor, monotonic)
        self._is_taken_up = False
        self._was_told = False
        self._further_back: int | None = None
        self._warned: set[tuple[str, str]] = set()

    # Observing

    def observe(self, **facts: Any) -> None:
        """Describe a step: ``action, progress, failed, seconds, task, idle, backlog``.

        The rest is taken from `current_task`, `mailbox` and the clock. Without this call, each
        `detect_drift` counts as a step, and a recovery checkpoint taken while an exception is
        being handled counts as a failed one.
        """
        unknown = set(facts) - _FACTS
        if unknown:
            raise UsageError(f"observe() knows no {', '.join(sorted(unknown))}")
        try:
            msgspec.convert(facts, Observation)
        except msgspec.ValidationError as error:
            raise UsageError(f"observe() cannot take that: {error}") from None
        with self._lock:
            self._observe(facts)
            self._was_told = True

    def _observe(self, facts: Mapping[str, Any]) -> None:
        self._take_up()
        captured = self._providers.capture_any()
        self._history.observe(captured, self._damage(), facts)

    def _take_up(self) -> None:
        if self._is_taken_up:
            return
        self._is_taken_up = True
        try:
            self._history.take_up(self.reader, self.agent_id)
        except DataError as error:
            # What is wrong is for the next look to find, and not for this one to fail at.
            logger.warning("agent %s: its history cannot be read: %s", self.agent_id, error)

    def _damage(self) -> str:
        """Describe the damage in the stored records, as of the last verification."""
        now = self._monotonic()
        if self._verified is None or now - self._verified[0] >= self._verify_every:
            self._verified = (now, self._verify())
        return self._verified[1]

    def _verify(self) -> str:
        try:
            if self.reader.run(self.agent_id) is None:
                return ""
            return "; ".join(self.verify(self.agent_id)[0].problems)
        except DataError as error:
            return error.message

    def _step(self, captured: Captured) -> int:
        self._take_up()
        return self._history.step_of(captured)

    def _beside(self) -> tuple[Note, ...]:
        note = self._history.note()
        return () if note is None else (note,)

    def _saved(self, notes: tuple[Note, ...]) -> None:
        if notes:
            self._history.stored()

    def _was_restored(self, captured: Captured) -> None:
        self._history.restart(captured, self._damage())
        self._drifts_since = None

    def _circumstances(self, kind: str) -> dict[str, Any]:
        error = sys.exception()
        if kind != "recovery" or error is None:
            return {}
        self._observe({"failed": True})
        return {"error": type(error).__name__}

    # Drift

    def detect_drift(self) -> DriftReport | bool:
        """Count a step, unless `observe` did, and report drift: true if it advises a restore.

        Findings that only warn are logged once and leave the report false, so that a loop which
        restores on drift loses no healthy work. After a restore only later steps count. A subclass
        may add its own check: ``return super().detect_drift() or self._my_own()``.
        """
        with self._lock:
            if not self._was_told:
                self._observe({})
            self._was_told = False
            report = self.drift_report()
            self._log_warnings(report)
            self._drifts_since = report.since if report else None
            return report

    def drift_report(self) -> DriftReport:
        """Return the findings about the last steps, without counting one."""
        with self._lock:
            self._take_up()
            return self._history.monitor.look()

    def check_drift(self) -> DriftReport:
        """Call `detect_drift`, and react to drift as *on_drift* says.

        If the report advises a restore, a recovery checkpoint is taken. Then a warning is logged
        (``warn``); or the newest good checkpoint from before the drift is restored (``restore``),
        an older one each time until a whole window of steps has passed without drift; or a
        `DriftError` is raised (``stop``, and when no earlier checkpoint is left).
        """
        with self._lock:
            drifts = self.detect_drift()
            report = self.drift_report()
            if not drifts:
                if self._history.quiet >= self._history.monitor.window:
                    self._further_back = None
                return report
            report = report or _said_so(self._history.step)
            recovery = self.create_checkpoint("recovery", tags=["drift"])
            self._history.quiet = 0
            self._act_on(report, recovery)
            return report

    def _log_warnings(self, report: DriftReport) -> None:
        """Log each finding that only warns, once while it lasts."""
        warnings = {
            (one.detector, one.about): one for one in report.findings if one.level == "warn"
        }
        for key, one in warnings.items():
            if key not in self._warned:
                logger.warning("agent %s: %s", self.agent_id, one)
        self._warned = set(warnings)

    def _act_on(self, report: DriftReport, recovery: str) -> None:
        policy = self.on_drift
        logger.warning("agent %s drifts (%s): %s", self.agent_id, policy, report)
        if policy == "warn":
            return
        good = self._last_good(report.since) if policy == "restore" else None
        if good is not None:
            self._further_back = good.seq
            self.restore_checkpoint(good.id)
            return
        why = "" if policy == "stop" else ", and no earlier checkpoint is left to restore"
        raise DriftError(
            f"agent {self.agent_id!r} drifts{why}: {report}",
            agent_id=self.agent_id,
            report=report,
            checkpoint_id=recovery,
        )

    def _last_good(self, since: int | None) -> Header | None:
        """The newest whole checkpoint from before *since*, and from before the last that was gone
        back to. Recovery ones are not taken: they are of trouble."""
        for header in self.storage.headers(RecordQuery(run_id=self.agent_id, scope="")):
            late = since is not None and header.step >= since
            later = self._further_back is not None and header.seq >= self._further_back
            if late or later or header.kind == "recovery" or PARTIAL in header.tags:
                continue
            try:
                self.reader.load(header)
            except DataError:
                logger.warning("checkpoint %s is damaged and passed over", header.id)
                continue
            return header
        return None


def _with_fallbacks(
    storage: Storage | str | None, fallbacks: Sequence[str] | None
) -> Storage | str:
    """The storage that saves go to: with fallbacks, a `ResilientStorage` over all of them."""
    if fallbacks is not None and isinstance(storage, Storage):
        raise UsageError(
            "fallbacks go with the address of a storage",
            hint="give ResilientStorage(storage, fallback) as the storage",
        )
    if isinstance(storage, Storage):
        return storage
    address = default_address() if storage is None else storage
    if fallbacks is None:
        # A name is of a storage that others share, and has a copy if they want one.
        own = storage is None and ":" in address and not address.startswith("resilient:")
        fallbacks = [_FALLBACK] if own else []
    return f"resilient:{'|'.join([address, *fallbacks])}" if fallbacks else address


def _said_so(step: int) -> DriftReport:
    """The report of a subclass's own `detect_drift` that says no more than yes."""
    finding = Finding(
        detector="detect_drift", saw="the agent's own check says so", confidence=1.0, since=step
    )
    return DriftReport(findings=(finding,))
