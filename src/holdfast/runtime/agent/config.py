"""How an autonomous agent is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.core.policy import Triggers
from holdfast.errors import UsageError

__all__ = ["AutonomousConfig"]


class _DefaultCount(int):
    """A number of steps that nobody chose."""


class _DefaultSeconds(float):
    """A number of seconds that nobody chose."""


_FREQUENCY = _DefaultCount(5)
_INTERVAL = _DefaultSeconds(60.0)
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class AutonomousConfig:
    """What an agent may do, which model it uses, and when it is saved.

    >>> AutonomousConfig().max_cycles, AutonomousConfig().checkpoint_frequency
    (20, 5)
    """

    max_cycles: int = 20
    """How many cycles a run may have, resumes included."""
    planning_enabled: bool = True
    """Whether a plan is made first."""
    checkpoint_frequency: int | None = _FREQUENCY
    """Save after so many steps; the state manager may set it too."""
    checkpoint_interval_seconds: float | None = _INTERVAL
    """Save after so many seconds; the state manager may set it too."""
    resume_from_checkpoint: bool = False
    """Whether the newest run of this agent that is not completed is gone on with."""
    llm_provider: str | None = None
    model: str | None = None
    """Without provider and model, the variable ``HOLDFAST_MODEL`` says which."""
    temperature: float | None = None
    max_tokens: int | None = None
    provider_config: Mapping[str, Any] = field(default_factory=dict)
    """More settings for `holdfast.open_model`: base_url, api_key, prices."""
    budget_usd: float | None = None
    """No cycle is begun that would exceed it, by what the cycles before it cost."""
    timeout_seconds: float | None = None
    """Interrupt each `run` after so long."""
    enable_interrupts: bool = True
    """Whether SIGINT and SIGTERM interrupt a run."""
    graceful_shutdown_timeout: float = 5.0
    """How long a cycle may take to finish after it was asked to stop."""
    checkpoint_on_interrupt: bool = True
    """Whether an interrupt is saved. If not, the newest checkpoint stays the one to go on from."""
    error_handling_enabled: bool = True
    """Whether a run that fails gives a result that says so; otherwise the error is raised."""

    def __post_init__(self) -> None:
        for name in ("max_cycles", "budget_usd", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value!r}", hint="give more than 0")
        if self.graceful_shutdown_timeout < 0:
            raise UsageError(
                f"graceful_shutdown_timeout is {self.graceful_shutdown_timeout!r}",
                hint="give 0 or more",
            )
        # What is wrong with a trigger is said here, and not when the first run begins.
        Triggers(self.checkpoint_frequency, self.checkpoint_interval_seconds)

    def triggers(self, others: Triggers) -> Triggers:
        """These and the state manager's, whichever comes first; defaults where neither is set."""
        frequency, interval = self.checkpoint_frequency, self.checkpoint_interval_seconds
        own_count = None if isinstance(frequency, _DefaultCount) else frequency
        own_time = None if isinstance(interval, _DefaultSeconds) else interval
        return Triggers(
            frequency=_least(own_count, others.frequency) or int(_FREQUENCY),
            interval=_least(own_time, others.interval) or float(_INTERVAL),
        )


def _least(*values: N | None) -> N | None:
    return min((value for value in values if value is not None), default=None)
