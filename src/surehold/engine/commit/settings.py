"""The settings of code that saves, which it takes to every storage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from surehold.core.policy import Triggers
from surehold.engine.repair import OnCorrupt
from surehold.errors import UsageError

if TYPE_CHECKING:
    from surehold.core.policy import Rules
    from surehold.engine.crypto import Keyring
    from surehold.engine.hooks import HookManager

OnSaveFailure = Literal["fail", "warn", "retry"]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks, keys and rules: what differs by code, not by storage."""

    hooks: HookManager | None = None
    triggers: Triggers = Triggers()
    rules: Rules | None = None
    keys: Keyring | None = None
    on_save_failure: OnSaveFailure = "fail"
    on_corrupt: OnCorrupt = "fail"
    clock: Callable[[], datetime] = partial(datetime.now, UTC)

    def __post_init__(self) -> None:
        if self.on_save_failure not in ("fail", "warn", "retry"):
            raise UsageError(
                f"on_save_failure is {self.on_save_failure!r}",
                hint="one of 'fail', 'warn', 'retry'",
            )
        if self.on_corrupt not in ("fail", "fallback"):
            raise UsageError(f"on_corrupt is {self.on_corrupt!r}", hint="'fail' or 'fallback'")

    def with_hooks(self, hooks: HookManager | None) -> RunSettings:
        """The same settings with *hooks*, if there are none."""
        if self.hooks is not None or hooks is None:
            return self
        return msgspec.structs.replace(self, hooks=hooks)
