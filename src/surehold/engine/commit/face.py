"""A face of an engine: what every operation works with."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakSet

from surehold.core.policy import Clockwork
from surehold.core.records import Header
from surehold.core.state import Place
from surehold.core.values import remember
from surehold.engine.commit.agent_runs import FreshStateRuns
from surehold.engine.commit.engine import engine_of
from surehold.engine.commit.settings import RunSettings
from surehold.engine.commit.writer_thread import Writer
from surehold.engine.crypto import Sealer
from surehold.engine.journal import Journal
from surehold.engine.metrics import Metrics
from surehold.engine.repair import Repairer
from surehold.engine.retention import RetentionManager
from surehold.storage.base import Storage

if TYPE_CHECKING:
    from surehold.engine.hooks import HookEvent, HookManager, RedactionHook
    from surehold.engine.journal import Redacting

_RUNS_REMEMBERED = 1024


class Face:
    """One way to write to a storage: its engine, and settings of some code.

    Faces of one engine share its commits and nothing else: each knows the runs, keys and states
    that passed through it, so to each other they are writers like other processes.
    """

    def __init__(self, storage: Storage, settings: RunSettings) -> None:
        self.storage = storage
        self.settings = settings
        self.engine = engine_of(storage)
        self.hooks = settings.hooks
        self.metrics = Metrics()
        self.journal = Journal(
            storage,
            Sealer(storage, settings.keys),
            clock=settings.clock,
            redacting=_redacting(settings.hooks),
        )
        self.reader = self.journal.reader
        self.retention = RetentionManager(self.journal, settings.rules, settings.clock)
        self.repairer = Repairer(self, settings.on_corrupt, settings.clock)
        self.agent_runs = FreshStateRuns()
        self.missed: OrderedDict[str, int] = OrderedDict()
        """The number of saves that failed with only a warning, by run."""
        self._clocks: OrderedDict[str, Clockwork] = OrderedDict()
        self.counts_saves = not settings.triggers.every_step
        """True if a trigger counts from the last save."""
        self.writers: WeakSet[Writer] = WeakSet()
        """The threads that event loops hand their work to."""
        self.engine.faces.add(self)

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
            clock = Clockwork(self.settings.triggers)
            remember(self._clocks, name_or_run_id, clock, most=_RUNS_REMEMBERED)
        return clock

    def save_missed(self, run_id: str) -> None:
        """Count a save that failed with only a warning."""
        saves = self.missed.get(run_id, 0) + 1
        remember(self.missed, run_id, saves, most=_RUNS_REMEMBERED)

    def renew_locks(self) -> None:
        """Start with free locks in the child of a fork, whose other threads are gone."""
        self.journal.renew_lock()
        self.retention.renew_lock()
        self.metrics.renew_lock()
        for writer in [*self.writers]:
            writer.renew()


def _redacting(hooks: HookManager | None) -> Redacting | None:
    if hooks is None:
        return None
    from surehold.engine.hooks import RedactionHook
    from surehold.engine.journal import Redacting

    def redactions() -> list[RedactionHook]:
        return [hook for hook in hooks.hooks if isinstance(hook, RedactionHook)]

    return Redacting(redactions)
