"""The engine: what every operation over one storage works with."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from surehold.core.policy import Clockwork, Triggers
from surehold.core.records import Header
from surehold.core.state import Place
from surehold.engine.commit.agent_runs import FreshStateRuns
from surehold.engine.crypto import Keys, Sealer
from surehold.engine.journal import Journal
from surehold.engine.metrics import Metrics
from surehold.engine.repair import OnCorrupt, Repairer
from surehold.engine.retention import RetentionManager
from surehold.errors import UsageError
from surehold.storage.base import Storage

if TYPE_CHECKING:
    from surehold.core.policy import Rules
    from surehold.engine.hooks import HookEvent, HookManager, RedactionHook
    from surehold.engine.journal import Redacting

OnSaveFailure = Literal["fail", "warn", "retry"]
_RUNS_REMEMBERED = 1024


class Engine:
    """The parts of all operations: storage, journal, retention, hooks, metrics."""

    def __init__(
        self,
        storage: Storage,
        *,
        hooks: HookManager | None,
        triggers: Triggers,
        rules: Rules | None,
        keys: Keys | None,
        on_save_failure: OnSaveFailure,
        on_corrupt: OnCorrupt = "fail",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if on_save_failure not in ("fail", "warn", "retry"):
            raise UsageError(
                f"on_save_failure is {on_save_failure!r}", hint="one of 'fail', 'warn', 'retry'"
            )
        self.storage = storage
        self.hooks = hooks
        self.triggers = triggers
        self.on_save_failure = on_save_failure
        self.clock = clock
        self._rules = rules
        self._on_corrupt = on_corrupt
        self.metrics = Metrics()
        sealer = Sealer(storage, keys)
        self.journal = Journal(storage, sealer, clock=clock, redacting=self._redacting())
        self.reader = self.journal.reader
        self.retention = RetentionManager(self.journal, rules, clock)
        self.repairer = Repairer(self, on_corrupt, clock)
        self.agent_runs = FreshStateRuns()
        self.missed: OrderedDict[str, int] = OrderedDict()
        """The number of saves that failed with only a warning, by run."""
        self._clocks: OrderedDict[str, Clockwork] = OrderedDict()
        self.counts_saves = not triggers.every_step
        """True if a trigger counts from the last save."""

    def over(self, storage: Storage, hooks: HookManager | None = None) -> Engine:
        """An engine with these settings over another storage.

        *hooks* are for one that has none of its own.
        """
        return Engine(
            storage,
            hooks=hooks if self.hooks is None else self.hooks,
            triggers=self.triggers,
            rules=self._rules,
            keys=self.reader.sealer.keys,
            on_save_failure=self.on_save_failure,
            on_corrupt=self._on_corrupt,
            clock=self.clock,
        )

    def _redacting(self) -> Redacting | None:
        if self.hooks is None:
            return None
        from surehold.engine.hooks import RedactionHook
        from surehold.engine.journal import Redacting

        manager = self.hooks

        def redactions() -> list[RedactionHook]:
            return [hook for hook in manager.hooks if isinstance(hook, RedactionHook)]

        return Redacting(redactions)

    def hears(self, event: HookEvent) -> bool:
        """Return whether firing *event* would call a hook."""
        return self.hooks is not None and self.hooks.has(event)

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Return whether a trigger says that a save is due."""
        now = time.monotonic() if current_time is None else current_time
        return self._clock_of(name_or_run_id).due(current_step, now) is not None

    def count_save(self, place: Place | Header) -> None:
        """Let triggers count from here, whether they are asked by run or by name."""
        now = time.monotonic()
        for key in (place.run_id, place.name):
            if key:
                self._clock_of(key).saved(place.step, now)

    def _clock_of(self, name_or_run_id: str) -> Clockwork:
        clock = self._clocks.get(name_or_run_id)
        if clock is None:
            clock = Clockwork(self.triggers)
            remember(self._clocks, name_or_run_id, clock)
        return clock

    def save_missed(self, run_id: str) -> None:
        """Count a save that failed with only a warning."""
        remember(self.missed, run_id, self.missed.get(run_id, 0) + 1)

    def renew_locks(self) -> None:
        """Start with free locks in the child of a fork, whose other threads are gone."""
        self.journal.renew_lock()
        self.retention.renew_lock()
        self.metrics.renew_lock()


def remember(known: OrderedDict[str, Any], key: str, value: Any) -> None:
    """Set a key of a bounded mapping; the one set longest ago goes."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _RUNS_REMEMBERED:
        known.popitem(last=False)
