"""Configuration of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, UnsetType

from surehold.core.policy import Triggers, check_above_zero
from surehold.core.records import check_run_id
from surehold.doors.checks import check_fields
from surehold.errors import UsageError

_BY_DEFAULT = Triggers(frequency=5, interval=60.0)
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class AgentConfig:
    """Limits, model and checkpoints of an agent.

    >>> AgentConfig().max_cycles, AgentConfig().triggers(Triggers()).frequency
    (20, 5)
    """

    max_cycles: Annotated[int, Meta(gt=0)] = 20
    """Number of cycles that a run may have, resumes included."""
    planning_enabled: bool = False
    """Ask the model for a plan first, with a call of its own."""
    checkpoint_frequency: int | UnsetType | None = UNSET
    """Save after this many steps; None: not by count; unset: the state manager's, else 5."""
    checkpoint_interval_seconds: float | UnsetType | None = UNSET
    """Save after this many seconds; None: not by time; unset: the state manager's, else 60."""
    resume_from_checkpoint: bool = False
    """Continue the newest unfinished run of this agent that has the same task."""
    llm_provider: str | None = None
    model: str | None = None
    """Without provider and model, the variable ``SUREHOLD_MODEL`` names them."""
    temperature: float | None = None
    max_tokens: int | None = None
    provider_config: Mapping[str, Any] = field(default_factory=dict)
    """More settings for `surehold.open_model`: base_url, api_key, prices."""
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
        self.triggers(Triggers())  # a wrong one is refused here, and not when the first run begins

    def triggers(self, others: Triggers) -> Triggers:
        """These and the state manager's triggers combined.

        Without any, the beginning and the end of a run, failures and questions are saved.
        """
        count, seconds = self.checkpoint_frequency, self.checkpoint_interval_seconds
        return Triggers(
            frequency=_due(count, others.frequency, _BY_DEFAULT.frequency),
            interval=_due(seconds, others.interval, _BY_DEFAULT.interval),
        )


def read_options(
    name: str | AgentConfig | None,
    config: AgentConfig | None,
    agent_id: str,
    *,
    default_id: str,
    durable: bool,
    every: int | None,
    every_seconds: float | None,
) -> tuple[AgentConfig, str]:
    """The configuration and the agent's id; a `UsageError` for contradictions.

    A *durable* agent saves every cycle unless *every* or *every_seconds* say otherwise.
    """
    if isinstance(name, str):
        if agent_id != default_id and agent_id != name:
            raise UsageError(f"the name is {name!r}, and agent_id {agent_id!r}", hint=_ONE)
        agent_id = name
    elif name is not None:
        if not isinstance(name, AgentConfig):
            raise UsageError(f"an agent's name is {name!r}", hint="give a text or an AgentConfig")
        if config is not None:
            raise UsageError("two configurations are given", hint="give the name, then config=")
        config = name
    if config is not None and not isinstance(config, AgentConfig):
        raise UsageError(f"config is {config!r:.40}", hint="give AgentConfig(...)")
    check_above_zero(every=every, every_seconds=every_seconds)
    check_run_id(agent_id, "agent_id")
    config = config or AgentConfig()
    unset = config.checkpoint_frequency is config.checkpoint_interval_seconds is UNSET
    if every is None and every_seconds is None:
        if not durable or not unset:
            return config, agent_id
        every = 1
    elif not unset:
        raise UsageError(
            "every= or every_seconds= and the configuration's triggers are given", hint=_ONE
        )
    triggers: dict[str, Any] = {
        "checkpoint_frequency": every,
        "checkpoint_interval_seconds": every_seconds,
    }
    return replace(config, **triggers), agent_id


_ONE = "give one of them"


def _due(own: N | UnsetType | None, other: N | None, default: N | None) -> N | None:
    if own is UNSET:
        return default if other is None else other
    return min((value for value in (own, other) if value is not None), default=None)
