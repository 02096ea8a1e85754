"""The base of both managers: a face of a storage's engine, made from options."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Self

from surehold.core.policy import Triggers, check_above_zero
from surehold.engine.commit import Face, OnSaveFailure, RunSettings
from surehold.engine.crypto import load_keys
from surehold.engine.journal import Saveable
from surehold.engine.repair import OnCorrupt
from surehold.errors import UsageError
from surehold.storage.base import Storage
from surehold.storage.registry import default_address, open_storage

if TYPE_CHECKING:
    from surehold.core.policy import Rules
    from surehold.core.state import StateSnapshot
    from surehold.engine.crypto import Key
    from surehold.engine.hooks import HookManager
    from surehold.engine.metrics import Metrics


class Manager:
    """A face of a storage's engine, and what both managers tell about it."""

    def __init__(
        self,
        storage: Storage | str | None = None,
        every: int | None = None,
        every_seconds: float | None = None,
        retention_count: int | None = None,
        hook_manager: HookManager | None = None,
        *,
        retention: Rules | None = None,
        encryption_key: Key | None = None,
        old_keys: Sequence[Key] = (),
        on_save_failure: OnSaveFailure = "fail",
        on_corrupt: OnCorrupt = "fail",
        clock: Callable[[], datetime] = partial(datetime.now, UTC),  # noqa: B008
    ) -> None:
        # What a name is registered for belongs to whoever registered it.
        address = default_address() if storage is None else storage
        self._owns_storage = isinstance(address, str) and ":" in address
        rules = _rules(retention_count, retention)
        check_above_zero(every=every, every_seconds=every_seconds)
        triggers = Triggers(frequency=every, interval=every_seconds)
        settings = RunSettings(
            hooks=hook_manager,
            triggers=triggers,
            rules=rules,
            keys=load_keys(encryption_key, environ=os.environ, old_keys=old_keys),
            on_save_failure=on_save_failure,
            on_corrupt=on_corrupt,
            clock=clock,
        )
        self._use(Face(open_storage(storage), settings))

    def _use(self, face: Face) -> None:
        self.face = face
        """For operations of one's own: see `perform`."""
        self.settings = face.settings
        """The hooks, keys and rules."""
        self.storage = face.storage
        self.reader = face.reader
        """Finds runs and checkpoints and opens them: blocking, without hooks or metrics."""
        self.retention = face.retention
        """Applies the retention rules, and knows pins, releases and tags."""
        self.triggers = face.settings.triggers
        """The rules that `should_checkpoint` asks."""
        self.hook_manager = face.hooks
        """The registered hooks."""
        self.metrics = face.metrics
        """Counts and times of what this manager did."""

    @classmethod
    def of(cls, face: Face) -> Self:
        """Make a manager of a face that others may have too; closing it closes no storage."""
        made = cls.__new__(cls)
        made._owns_storage = False
        made._use(face)
        return made

    @classmethod
    def on(cls, storage: Storage, settings: RunSettings) -> Self:
        """Make a manager on *storage* with these settings; closing it closes no storage."""
        return cls.of(Face(storage, settings))

    def count_in(self, metrics: Metrics) -> None:
        """Count into these *metrics*, which others may share, from now on."""
        self.face.metrics = self.metrics = metrics

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Return True if a save is due, by steps or seconds since the last one.

        Seconds are monotonic and compared only with each other. The first call does not fire by
        itself; what was saved before a resume counts.
        """
        return self.face.should_checkpoint(name_or_run_id, current_step, current_time)

    def create_snapshot(self, state: Saveable, reason: str = "manual") -> StateSnapshot:
        """A copy of *state* as it is now, with a summary. It is not stored."""
        from surehold.core.state import StateSnapshot

        return StateSnapshot(copy.deepcopy(state), self.settings.clock(), reason)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {type(self.storage).__name__}>"


def _rules(count: int | None, rules: Rules | None) -> Rules | None:
    if count is not None and rules is not None:
        raise UsageError("retention_count and retention are both given", hint="give one of them")
    if count is None and rules is None:
        return None
    from surehold.core.policy import Rules

    if rules is not None:
        if not isinstance(rules, Rules):
            raise UsageError(f"retention is {rules!r}", hint="give Rules(keep_last=20), or others")
        return rules
    return Rules(keep_last=count, group_by="name")
