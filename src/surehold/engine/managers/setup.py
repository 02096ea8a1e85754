"""The base of both managers: an engine, made from options."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Self

from surehold.core.policy import Triggers, check_above_zero
from surehold.engine.commit import Engine, GroupCommit, OnSaveFailure, Writer
from surehold.engine.crypto import load_keys
from surehold.engine.journal import Saveable
from surehold.engine.repair import OnCorrupt
from surehold.errors import UsageError
from surehold.forks import register_at_fork
from surehold.storage.base import Storage, default_address, open_storage

if TYPE_CHECKING:
    from surehold.core.policy import Rules
    from surehold.core.state import StateSnapshot
    from surehold.engine.crypto import Key
    from surehold.engine.hooks import HookManager


class Manager:
    """An engine over one storage, and what both managers tell about it."""

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
        keys = load_keys(encryption_key, environ=os.environ, old_keys=old_keys)
        engine = Engine(
            open_storage(storage),
            hooks=hook_manager,
            triggers=triggers,
            rules=rules,
            keys=keys,
            on_save_failure=on_save_failure,
            on_corrupt=on_corrupt,
            clock=clock,
        )
        self._use(engine, GroupCommit(engine.journal))

    def _use(self, engine: Engine, group_commit: GroupCommit) -> None:
        self.engine = engine
        """For operations of one's own: see `perform`."""
        self.storage = engine.storage
        self.reader = engine.reader
        """Finds runs and checkpoints and opens them: blocking, without hooks or metrics."""
        self.retention = engine.retention
        """Applies the retention rules, and knows pins, releases and tags."""
        self.triggers = engine.triggers
        """The rules that `should_checkpoint` asks."""
        self.hook_manager = engine.hooks
        """The registered hooks."""
        self.metrics = engine.metrics
        """Counts and times of what this manager did."""
        self._group_commit = group_commit
        self._writer = Writer(engine.journal)
        _managers.add(self)

    @classmethod
    def beside(cls, manager: Manager) -> Self:
        """Make a manager over the engine of another; closing it leaves that open."""
        made = cls.__new__(cls)
        made._owns_storage = False
        made._use(manager.engine, manager._group_commit)
        return made

    @classmethod
    def like(
        cls, manager: Manager | None, storage: Storage, hooks: HookManager | None = None
    ) -> Self:
        """Make a manager over *storage* with the hooks, keys and rules of another.

        *hooks* are for one that has none of its own. Closing it leaves the storage open.
        """
        if manager is None:
            return cls(storage, hook_manager=hooks)
        made = cls.__new__(cls)
        made._owns_storage = False
        engine = manager.engine.over(storage, hooks)
        made._use(engine, GroupCommit(engine.journal))
        return made

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Return True if a save is due, by steps or seconds since the last one.

        Seconds are monotonic and compared only with each other. The first call does not fire by
        itself; what was saved before a resume counts.
        """
        return self.engine.should_checkpoint(name_or_run_id, current_step, current_time)

    def create_snapshot(self, state: Saveable, reason: str = "manual") -> StateSnapshot:
        """A copy of *state* as it is now, with a summary. It is not stored."""
        from surehold.core.state import StateSnapshot

        return StateSnapshot(copy.deepcopy(state), self.engine.clock(), reason)

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


_managers: weakref.WeakSet[Manager] = weakref.WeakSet()


def _renew_after_fork() -> None:
    """Start with free locks in the child of a fork, whose other threads are gone."""
    for manager in [*_managers]:
        manager.engine.renew_locks()
        manager._group_commit.renew()
        manager._writer.renew()


register_at_fork(after_in_child=_renew_after_fork)
