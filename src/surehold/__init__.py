"""Surehold: agents and workflows that resume after being killed at any moment.

>>> import surehold
>>> with surehold.run("nightly", storage="memory://") as run:
...     for page in ["a", "b"][run.state.get("done", 0):]:
...         _ = run.checkpoint(done=run.state.get("done", 0) + 1)
>>> run.status
'completed'

Names are loaded when they are first used, so that importing Surehold is quick. `__all__` and
`dir` list the names to begin with; names that are not listed belong to a room or to
`surehold.compat`, and are found here too. Type checkers read the stub beside this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LISTED = {
    "surehold": "errors",
    "surehold.agents.agent": "Agent AgentConfig",
    "surehold.agents.fleet": "Fleet",
    "surehold.agents.resilient": "ResilientCheckpointManager",
    "surehold.agents.tools": "Approval tool",
    "surehold.core.policy": "RetryPolicy Rules",
    "surehold.core.state": "State migrations",
    "surehold.core.values": "Usage register_type",
    "surehold.doors.events": "DriftWatch Event emit events",
    "surehold.doors.functions": "continue_as_new gather now patched publish race random receive"
    " select sleep step uuid4 wait_for workflow",
    "surehold.doors.graph": "CheckpointConfig GraphConfig StateGraph",
    "surehold.doors.loop": "Run run",
    "surehold.doors.result": "RunResult",
    "surehold.engine.groups": "group",
    "surehold.engine.hooks": "HookManager LoggingHook RedactionHook",
    "surehold.engine.managers": "AsyncCheckpointManager CheckpointManager",
    "surehold.engine.runs": "answer approve expire interrupt pending reject send",
    "surehold.engine.runs.effects": "effect",
    "surehold.errors": "Cancelled SureholdError",
    "surehold.executors": "queues schedule",
    "surehold.integrations.recorder": "record replay",
    "surehold.storage.base": "Storage",
    "surehold.storage.files": "FilesystemStorage",
    "surehold.storage.memory": "MemoryStorage",
    "surehold.storage.postgres": "PostgresStorage",
    "surehold.storage.redis": "RedisStorage",
    "surehold.storage.registry": "open_storage",
    "surehold.storage.replicated": "ResilientStorage",
    "surehold.storage.sqlite": "SQLiteStorage",
}

_FOUND_TOO = {
    "surehold.agents.agent": "AgentResult",
    "surehold.agents.fleet": "FleetBuilder FleetResult create_checkpoint_storage read_workflow",
    "surehold.agents.models": "Message Model Reply ToolCall ToolSpec open_model register_provider",
    "surehold.agents.tools": "InputField OutputField Signature",
    "surehold.compat": "AutonomousConfig BaseAutonomousAgent MagenticFleet StateManager",
    "surehold.core.policy": "DriftReport Finding Observation default_detectors plan_prune",
    "surehold.core.state": "AgentState StateSnapshot",
    "surehold.doors.events": "Observer look_back register_observer",
    "surehold.doors.graph": "all_of any_of key_equals key_exists"
    " not_ process_chain process_conditional process_parallel"
    " ChainNode ConditionalNode ParallelNode",
    "surehold.engine.groups": "Group import_group",
    "surehold.engine.hooks": "HookContext HookEvent HookPriority HookResult"
    " MetricsHook TracingHook",
    "surehold.engine.journal": "CheckpointMetadata",
    "surehold.engine.metrics": "Metrics",
    "surehold.engine.repair": "RepairReport",
    "surehold.doors.functions": "Update lock on_query query receive_update set_attributes update",
    "surehold.engine.runs": "InterruptReason",
    "surehold.engine.runs.effects": "heartbeat last_heartbeat",
    "surehold.engine.runs.messages": "attributes_of find_runs",
    "surehold.engine.transfer": "ImportLimits",
    "surehold.storage.base": "RecordQuery RunQuery",
    "surehold.storage.io": "resilient_io",
    "surehold.storage.registry": "get_checkpoint_store register_checkpoint_store",
    "surehold.storage.replicated": "BreakerRules StorageEvent",
    "surehold.storage.retries": "Retry",
}


def _homes(table: dict[str, str]) -> dict[str, str]:
    return {name: module for module, names in table.items() for name in names.split()}


__all__ = sorted(_homes(_LISTED))  # noqa: PLE0605
_HOMES = _homes(_FOUND_TOO) | _homes(_LISTED)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "State":  # what State.checkpoint() saves through
        import_module("surehold.engine.managers")
    if home == __name__:
        return import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__", "compat"]
