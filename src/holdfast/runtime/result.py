"""The result of a run, one class for every way to execute one."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from holdfast.checkpoint.effects import Waiting

__all__ = ["RunResult", "Spent"]

T = TypeVar("T")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of recorded calls."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0
    seconds: float = 0.0


class RunResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """How a run ended, or what it waits for. Failures are raised."""

    run_id: str
    status: str
    """``completed``, ``waiting`` or, where a run is only looked at, any other status."""
    value: T | None = None
    """What a completed function returned."""
    state: Any = None
    """The state of a completed graph or agent."""
    step: int = 0
    """The recorded calls, nodes, cycles or rounds of the whole run."""
    usage: Spent = Spent()
    """The cost of all recorded calls of the run."""
    saved: Spent = Spent()
    """The cost of those that were recorded by an earlier start and not made again."""
    waiting: tuple[Waiting, ...] = ()
    error: str = ""
    """The failure of a run that is only looked at."""

    @property
    def completed(self) -> bool:
        """True if the run has ended well."""
        return self.status == "completed"
