"""Settings of a fleet as values, as `workflow.yaml` gives them.

Each class is a section of the file, each field a key. `agents.fleet.workflow_file` reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from surehold.core.policy import Rules
from surehold.doors.checks import check_fields

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file. A key that is not a field is an error."""


class CheckpointSettings(_Section, frozen=True):
    """``checkpointing``: storage and retention of a fleet."""

    enabled: bool = True
    storage_type: _Text = "file"
    """``file``, ``memory``, ``sqlite``, a registered name, or the URL of any storage."""
    storage_path: _Text = "./checkpoints"
    """The directory of ``file`` and ``sqlite``; for ``sqlite`` also a file named ``*.db``."""
    cleanup_after_days: _Count | None = 30
    """Delete completed runs this many days after their end, and older checkpoints of other runs;
    the newest of an unfinished run stays. None: delete nothing."""
    auto_resume_on_failure: bool = False
    """Resume a run that fails a few times, later each time; not after an error of the program."""
    retention: dict[str, Any] = {}
    """Retention during a run: the names of `Rules`, with their values."""

    @property
    def rules(self) -> Rules:
        """The retention as rules."""
        return Rules.from_mapping(self.retention)


class ApprovalSettings(_Section, frozen=True):
    """``human_in_the_loop``: which operations wait for a person."""

    enabled: bool = True
    approval_timeout_seconds: _Seconds = 300.0
    auto_reject_on_timeout: bool = False
    """Reject what is not answered in time. Otherwise the run keeps waiting."""
    require_approval_for: tuple[str, ...] = (
        "code_execution",
        "file_operations",
        "external_api_calls",
        "sensitive_data_access",
    )
    """Operations, or tools by their names."""
    trusted_operations: tuple[str, ...] = ("web_search", "data_analysis")
    """Operations, or tools by their names, that never wait, whatever the list above says."""

    def needs(self, *names: str) -> bool:
        """Return True if a tool of these names (own, operation) needs approval.

        >>> ApprovalSettings(trusted_operations=["run_tests"]).needs("shell", "code_execution")
        True
        >>> ApprovalSettings(trusted_operations=["run_tests"]).needs("run_tests", "code_execution")
        False
        """
        trusted = any(name in self.trusted_operations for name in names)
        return (
            self.enabled
            and not trusted
            and any(name in self.require_approval_for for name in names)
        )


class WorkflowSettings(_Section, frozen=True):
    """``workflow``: the limits of a run; `Orchestrator` may set counts for the fleet."""

    max_rounds: _Count = 10
    max_stalls: _Number = 3
    max_resets: _Number = 2
    timeout_seconds: _Seconds | None = 300.0
    """Seconds of execution in all, resumes included, without waiting. None: no limit."""


class Reasoning(_Section, frozen=True):
    """``fleet.manager.reasoning``."""

    effort: Literal["minimal", "low", "medium", "high"] | None = None


class ManagerSettings(_Section, frozen=True):
    """``fleet.manager``: the model that plans, and decides who does what."""

    model: _Text | None = None
    reasoning: Reasoning = Reasoning()
    instructions: str = ""


class Orchestrator(_Section, frozen=True):
    """``fleet.orchestrator``: the limits that differ from those of ``workflow``."""

    max_round_count: _Count | None = None
    max_stall_count: _Number | None = None
    max_reset_count: _Number | None = None


class PlanReview(_Section, frozen=True):
    """``fleet.plan_review``: showing the plan, and asking for approval of it."""

    enabled: bool = True
    """Emit plans as events. Otherwise only the checkpoints hold them."""
    require_human_approval: bool = False
    """Make the run wait with its plan until someone approves, edits or rejects it."""


class Callbacks(_Section, frozen=True):
    """``fleet.callbacks``: which events observers receive."""

    streaming_enabled: bool = True
    """Text as the models write it."""
    log_progress_ledger: bool = True
    log_tool_calls: bool = True


class FleetSettings(_Section, frozen=True):
    """``fleet``: the manager and how it works."""

    manager: ManagerSettings = ManagerSettings()
    orchestrator: Orchestrator = Orchestrator()
    plan_review: PlanReview = PlanReview()
    callbacks: Callbacks = Callbacks()


class ModelSettings(_Section, frozen=True):
    """Settings of a model; None leaves one to ``defaults``, or to the provider."""

    model: _Text | None = None
    temperature: _Temperature | None = None
    max_tokens: _Count | None = None
    top_p: _Share | None = None


class Defaults(ModelSettings, frozen=True):
    """``defaults``: the model of participants that name no model."""

    tool_model: _Text | None = None
    """The model of participants with tools."""
    temperature: _Temperature | None = 0.2
    max_tokens: _Count | None = 4000
    top_p: _Share | None = 1.0


class ToolSettings(_Section, frozen=True):
    """An entry of ``tools``."""

    name: _Text
    enabled: bool = True
    operation: _Text | None = None
    """Its operation in ``human_in_the_loop``; its name counts too."""
    function: _Text | None = None
    """``package.module:function``, for one that is not given in code."""


class RuntimeSettings(_Section, frozen=True):
    """``runtime`` of a participant."""

    stream: bool = True
    """Emit its text as it is written, where ``streaming_enabled`` allows."""
    store: bool = True
    """Show it its earlier rounds. Otherwise each instruction comes alone."""
    checkpoint: bool = True
    """Record its model calls one by one. Otherwise an interrupted round asks again."""


class AgentSettings(ModelSettings, frozen=True):
    """``agent`` of a participant: who it is and what answers for it."""

    name: _Text | None = None
    description: str = ""


class ParticipantSettings(_Section, frozen=True):
    """An entry of ``agents``, in place or in another file."""

    agent: AgentSettings = AgentSettings()
    system_prompt: str = ""
    tools: tuple[ToolSettings, ...] = ()
    runtime: RuntimeSettings = RuntimeSettings()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run."""

    rounds: _Count = 10
    stalls: _Number = 3
    resets: _Number = 2
    seconds: _Seconds | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a `workflow.yaml`."""

    workflow: WorkflowSettings = WorkflowSettings()
    checkpointing: CheckpointSettings = CheckpointSettings()
    human_in_the_loop: ApprovalSettings = ApprovalSettings()
    fleet: FleetSettings = FleetSettings()
    defaults: Defaults = Defaults()
    agents: dict[str, ParticipantSettings] = {}
    """By name; none means researcher, coder and analyst."""

    @property
    def limits(self) -> Limits:
        """The effective limits: the orchestrator's, else the workflow's.

        >>> Settings(fleet=FleetSettings(orchestrator=Orchestrator(max_round_count=15))).limits
        Limits(rounds=15, stalls=3, resets=2, seconds=300.0)
        """
        own, all_ = self.fleet.orchestrator, self.workflow
        return Limits(
            rounds=_first(own.max_round_count, all_.max_rounds),
            stalls=_first(own.max_stall_count, all_.max_stalls),
            resets=_first(own.max_reset_count, all_.max_resets),
            seconds=all_.timeout_seconds,
        )


def _first(own: int | None, other: int) -> int:
    return other if own is None else own
