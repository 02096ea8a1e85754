"""Configuration of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from holdfast.core.policy import Triggers
from holdfast.runtime.checks import check_fields

__all__ = ["AutonomousConfig"]


class _DefaultCount(int):
    """Marks the default number of steps."""


class _DefaultSeconds(float):
    """Marks the default number of seconds."""


_FREQUENCY = _DefaultCount(5)
_INTERVAL = _DefaultSeconds(60.0)
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class AutonomousConfig:
    """Limits, model and checkpoints of an agent.

    >>> AutonomousConfig().max_cycles, AutonomousConfig().checkpoint_frequency
    (20, 5)
    """

    max_cycles: Annotated[int, Meta(gt=0)] = 20
    """Number of cycles that a run may have, resumes included."""
    planning_enabled: bool = True
    """Make a plan first."""
    checkpoint_frequency: int | None = _FREQUENCY
    """Save after this many steps; the state manager may set it too."""
    checkpoint_interval_seconds: float | None = _INTERVAL
    """Save after this many seconds; the state manager may set it too."""
    resume_from_checkpoint: bool = False
    """Continue the newest unfinished run of this agent that has the same task."""
    llm_provider: str | None = None
    model: str | None = None
    """Without provider and model, the variable ``HOLDFAST_MODEL`` names them."""
    temperature: float | None = None
    max_tokens: int | None = None
    provider_config: Mapping[str, Any] = field(default_factory=dict)
    """More settings for `holdfast.open_model`: base_url, api_key, prices."""
    budget_usd: Annotated[float, Meta(gt=0)] | None = None
    """Begin no cycle that would exceed it, by the cost of the cycles before."""
    timeout_seconds: Annotated[float, Meta(gt=0)] | None = None
    """Interrupt each `run` after this time."""
    enable_interrupts: bool = True
    """Interrupt a run on SIGINT and SIGTERM."""
    graceful_shutdown_timeout: Annotated[float, Meta(ge=0)] = 5.0
    """Seconds that a cycle may take to finish after a request to stop."""
    checkpoint_on_interrupt: bool = True
    """Save an interrupt. Otherwise a resume continues from the newest checkpoint before it."""
    error_handling_enabled: bool = True
    """Return a result with status ``failed`` if a run fails; otherwise raise the error."""

    def __post_init__(self) -> None:
        check_fields(self)
        # A wrong trigger is refused here, and not when the first run begins.
        Triggers(self.checkpoint_frequency, self.checkpoint_interval_seconds)

    def triggers(self, others: Triggers) -> Triggers:
        """These and the state manager's triggers combined; defaults where neither is set."""
        frequency, interval = self.checkpoint_frequency, self.checkpoint_interval_seconds
        own_count = None if isinstance(frequency, _DefaultCount) else frequency
        own_time = None if isinstance(interval, _DefaultSeconds) else interval
        return Triggers(
            frequency=_least(own_count, others.frequency) or int(_FREQUENCY),
            interval=_least(own_time, others.interval) or float(_INTERVAL),
        )


def _least(*values: N | None) -> N | None:
    return min((value for value in values if value is not None), default=None)
