"""The spellings of Kaizen, AgenticFleet, go-agents-orchestration and Dream.OS.

Each name is here and at the top of the package, where it is not listed. New code uses the names
that the top lists; what was changed on purpose is in `docs/migrating.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surehold.agents.agent import Agent, AgentConfig
from surehold.agents.fleet import Fleet, FleetBuilder, create_checkpoint_storage, read_workflow
from surehold.core.state import AgentState, StateSnapshot
from surehold.doors.graph import process_chain, process_conditional, process_parallel
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import UsageError
from surehold.storage.registry import get_checkpoint_store, register_checkpoint_store

if TYPE_CHECKING:
    from surehold.engine.hooks import HookManager
    from surehold.storage.base import Storage
    from surehold.storage.io import resilient_io

__all__ = [
    "AgentState",
    "AutonomousConfig",
    "BaseAutonomousAgent",
    "FleetBuilder",
    "MagenticFleet",
    "StateManager",
    "StateSnapshot",
    "create_checkpoint_storage",
    "get_checkpoint_store",
    "process_chain",
    "process_conditional",
    "process_parallel",
    "read_workflow",
    "register_checkpoint_store",
    "resilient_io",
]

BaseAutonomousAgent = Agent
"""Kaizen's name of `Agent`."""
MagenticFleet = Fleet
"""AgenticFleet's name of `Fleet`."""


@dataclass(frozen=True)
class AutonomousConfig(AgentConfig):
    """Kaizen's `AgentConfig`: the agent plans first, unless it is told not to."""

    planning_enabled: bool = True


class StateManager(AsyncCheckpointManager):
    """`AsyncCheckpointManager` with the arguments of Kaizen's state manager.

    *checkpoint_frequency* is ``every``, *checkpoint_interval* is ``every_seconds``; all other
    options are those of `AsyncCheckpointManager`.
    """

    def __init__(
        self,
        storage: Storage | str | None = None,
        checkpoint_frequency: int | None = None,
        checkpoint_interval: float | None = None,
        retention_count: int | None = None,
        hook_manager: HookManager | None = None,
        **options: Any,
    ) -> None:
        for name, other, value in (
            ("every", "checkpoint_frequency", checkpoint_frequency),
            ("every_seconds", "checkpoint_interval", checkpoint_interval),
        ):
            if value is not None and options.get(name) is not None:
                what = f"{name}= and {other}= are given"
                raise UsageError(what, hint="they mean the same; give one")
            options.setdefault(name, value)
        super().__init__(
            storage, retention_count=retention_count, hook_manager=hook_manager, **options
        )


def __getattr__(name: str) -> Any:
    if name == "resilient_io":  # needs the file locks of POSIX
        from surehold.storage.io import resilient_io

        return resilient_io
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
