"""`FleetBuilder`: a fleet put together call by call, as AgenticFleet does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.settings import PlanReview
from surehold.agents.models import Model, open_model
from surehold.agents.tools import ApprovalHandler
from surehold.doors.events import Observer
from surehold.errors import UsageError
from surehold.storage.base import Storage


class FleetBuilder:
    """Collects the parts of a `Fleet`; every method returns the builder.

    >>> from surehold.testing.scripted import ScriptedModel
    >>> fleet = FleetBuilder().with_manager("Be brief.", ScriptedModel(["..."])).build()
    >>> fleet.participants
    ('researcher', 'coder', 'analyst')
    """

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}

    def with_manager(self, instructions: str = "", model: Model | str | None = None) -> Self:
        """Set the manager's instructions and its model, which is required."""
        if model is not None:
            self._set(manager=open_model(model) if isinstance(model, str) else model)
        return self._set(instructions=instructions)

    def with_agents(self, agents: Mapping[str, Any]) -> Self:
        """Set the participants by name; by default the three roles of a `Fleet`."""
        return self._set(participants=dict(agents))

    def with_checkpointing(self, storage: Storage | str | None) -> Self:
        """Save every round in *storage*; None saves nothing."""
        return self._set(storage=storage)

    def with_observability(
        self, observer: str | Observer | Sequence[str | Observer] = "log"
    ) -> Self:
        """Send events to *observer*."""
        return self._set(observer=observer)

    def with_plan_review(self, enabled: bool = True) -> Self:
        """Make runs wait until a person approves their plan."""
        return self._set(plan_review=PlanReview(require_human_approval=enabled))

    def with_approval_handler(self, handler: ApprovalHandler) -> Self:
        """Ask for approvals at once through *handler*."""
        return self._set(approval_handler=handler)

    def _set(self, **given: Any) -> Self:
        self._given |= given
        return self

    def build(self) -> Fleet:
        """Make the fleet; `UsageError` without a model for the manager."""
        if "manager" not in self._given:
            raise UsageError(
                "a fleet needs a model for its manager",
                hint='call with_manager("...", "openai:gpt-5") before build',
            )
        return Fleet(**self._given)
