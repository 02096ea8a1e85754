"""Holdfast: agents and workflows that can be killed at any moment and go on.

>>> import holdfast
>>> with holdfast.run("nightly", storage="memory://") as run:
...     for page in ["a", "b"][run.state.get("done", 0):]:
...         _ = run.checkpoint(done=run.state.get("done", 0) + 1)
>>> run.status
'completed'

Names are loaded when they are first used, so that importing Holdfast is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast.checkpoint.effects import effect as effect
    from holdfast.checkpoint.hooks import HookContext as HookContext
    from holdfast.checkpoint.hooks import HookEvent as HookEvent
    from holdfast.checkpoint.hooks import HookManager as HookManager
    from holdfast.checkpoint.hooks import HookPriority as HookPriority
    from holdfast.checkpoint.hooks import HookResult as HookResult
    from holdfast.checkpoint.manager import CheckpointManager as CheckpointManager
    from holdfast.checkpoint.manager import StateManager as StateManager
    from holdfast.checkpoint.metrics import Metrics as Metrics
    from holdfast.checkpoint.pending import pending as pending
    from holdfast.checkpoint.pending import resolve as resolve
    from holdfast.checkpoint.questions import interrupt as interrupt
    from holdfast.checkpoint.ready_hooks import LoggingHook as LoggingHook
    from holdfast.checkpoint.ready_hooks import MetricsHook as MetricsHook
    from holdfast.checkpoint.ready_hooks import RedactionHook as RedactionHook
    from holdfast.checkpoint.ready_hooks import TracingHook as TracingHook
    from holdfast.checkpoint.repair import RepairReport as RepairReport
    from holdfast.checkpoint.resilient import (
        ResilientCheckpointManager as ResilientCheckpointManager,
    )
    from holdfast.checkpoint.run import Run as Run
    from holdfast.checkpoint.run import run as run
    from holdfast.checkpoint.run_file_reader import ImportLimits as ImportLimits
    from holdfast.checkpoint.views import CheckpointMetadata as CheckpointMetadata
    from holdfast.core.agent_state import AgentState as AgentState
    from holdfast.core.agent_state import StateSnapshot as StateSnapshot
    from holdfast.core.codec import register_type as register_type
    from holdfast.core.drift import DriftReport as DriftReport
    from holdfast.core.drift import Finding as Finding
    from holdfast.core.drift import Observation as Observation
    from holdfast.core.drift_detectors import default_detectors as default_detectors
    from holdfast.core.migrations import migrations as migrations
    from holdfast.core.retention import plan_prune as plan_prune
    from holdfast.core.rules import Rules as Rules
    from holdfast.core.state import State as State
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.runtime.agent import BaseAutonomousAgent as BaseAutonomousAgent
    from holdfast.runtime.agent_config import AutonomousConfig as AutonomousConfig
    from holdfast.runtime.agent_result import AgentResult as AgentResult
    from holdfast.runtime.approvals import Approval as Approval
    from holdfast.runtime.config import CheckpointConfig as CheckpointConfig
    from holdfast.runtime.config import GraphConfig as GraphConfig
    from holdfast.runtime.drift_history import look_back as look_back
    from holdfast.runtime.drift_watch import DriftWatch as DriftWatch
    from holdfast.runtime.edges import all_of as all_of
    from holdfast.runtime.edges import any_of as any_of
    from holdfast.runtime.edges import key_equals as key_equals
    from holdfast.runtime.edges import key_exists as key_exists
    from holdfast.runtime.edges import not_ as not_
    from holdfast.runtime.fleet import Fleet as Fleet
    from holdfast.runtime.fleet import FleetResult as FleetResult
    from holdfast.runtime.graph import StateGraph as StateGraph
    from holdfast.runtime.interrupts import InterruptReason as InterruptReason
    from holdfast.runtime.models import Message as Message
    from holdfast.runtime.models import Model as Model
    from holdfast.runtime.models import Reply as Reply
    from holdfast.runtime.models import ToolCall as ToolCall
    from holdfast.runtime.models import ToolSpec as ToolSpec
    from holdfast.runtime.models import Usage as Usage
    from holdfast.runtime.models import open_model as open_model
    from holdfast.runtime.models import register_provider as register_provider
    from holdfast.runtime.nodes import ChainNode as ChainNode
    from holdfast.runtime.nodes import ConditionalNode as ConditionalNode
    from holdfast.runtime.nodes import ParallelNode as ParallelNode
    from holdfast.runtime.nodes import process_chain as process_chain
    from holdfast.runtime.nodes import process_conditional as process_conditional
    from holdfast.runtime.nodes import process_parallel as process_parallel
    from holdfast.runtime.observers import Event as Event
    from holdfast.runtime.observers import Observer as Observer
    from holdfast.runtime.observers import register_observer as register_observer
    from holdfast.runtime.signatures import InputField as InputField
    from holdfast.runtime.signatures import OutputField as OutputField
    from holdfast.runtime.signatures import Signature as Signature
    from holdfast.runtime.tools import tool as tool
    from holdfast.runtime.workflow_file import (
        create_checkpoint_storage as create_checkpoint_storage,
    )
    from holdfast.storage import resilient_io as resilient_io
    from holdfast.storage.base import RecordQuery as RecordQuery
    from holdfast.storage.base import RunQuery as RunQuery
    from holdfast.storage.base import Storage as Storage
    from holdfast.storage.filesystem import FilesystemStorage as FilesystemStorage
    from holdfast.storage.memory import MemoryStorage as MemoryStorage
    from holdfast.storage.registry import get_checkpoint_store as get_checkpoint_store
    from holdfast.storage.registry import open_storage as open_storage
    from holdfast.storage.registry import register_checkpoint_store as register_checkpoint_store
    from holdfast.storage.resilient import BreakerRules as BreakerRules
    from holdfast.storage.resilient import ResilientStorage as ResilientStorage
    from holdfast.storage.resilient import StorageEvent as StorageEvent
    from holdfast.storage.retries import Retry as Retry
    from holdfast.storage.sqlite import SQLiteStorage as SQLiteStorage

__version__ = "0.1.0"

_HOMES = {
    "AgentResult": "runtime.agent_result",
    "AgentState": "core.agent_state",
    "Approval": "runtime.approvals",
    "AutonomousConfig": "runtime.agent_config",
    "BaseAutonomousAgent": "runtime.agent",
    "BreakerRules": "storage.resilient",
    "ChainNode": "runtime.nodes",
    "CheckpointConfig": "runtime.config",
    "CheckpointManager": "checkpoint.manager",
    "CheckpointMetadata": "checkpoint.views",
    "ConditionalNode": "runtime.nodes",
    "DriftReport": "core.drift",
    "DriftWatch": "runtime.drift_watch",
    "Event": "runtime.observers",
    "FilesystemStorage": "storage.filesystem",
    "Finding": "core.drift",
    "Fleet": "runtime.fleet",
    "FleetResult": "runtime.fleet",
    "GraphConfig": "runtime.config",
    "HoldfastError": "errors",
    "HookContext": "checkpoint.hooks",
    "HookEvent": "checkpoint.hooks",
    "HookManager": "checkpoint.hooks",
    "HookPriority": "checkpoint.hooks",
    "HookResult": "checkpoint.hooks",
    "ImportLimits": "checkpoint.run_file_reader",
    "InputField": "runtime.signatures",
    "InterruptReason": "runtime.interrupts",
    "LoggingHook": "checkpoint.ready_hooks",
    "MemoryStorage": "storage.memory",
    "Message": "runtime.models",
    "Metrics": "checkpoint.metrics",
    "MetricsHook": "checkpoint.ready_hooks",
    "Model": "runtime.models",
    "Observation": "core.drift",
    "Observer": "runtime.observers",
    "OutputField": "runtime.signatures",
    "ParallelNode": "runtime.nodes",
    "RecordQuery": "storage.base",
    "RedactionHook": "checkpoint.ready_hooks",
    "RepairReport": "checkpoint.repair",
    "Reply": "runtime.models",
    "ResilientCheckpointManager": "checkpoint.resilient",
    "ResilientStorage": "storage.resilient",
    "Retry": "storage.retries",
    "Rules": "core.rules",
    "Run": "checkpoint.run",
    "RunQuery": "storage.base",
    "SQLiteStorage": "storage.sqlite",
    "Signature": "runtime.signatures",
    "State": "core.state",
    "StateGraph": "runtime.graph",
    "StateManager": "checkpoint.manager",
    "StateSnapshot": "core.agent_state",
    "Storage": "storage.base",
    "StorageEvent": "storage.resilient",
    "ToolCall": "runtime.models",
    "ToolSpec": "runtime.models",
    "TracingHook": "checkpoint.ready_hooks",
    "Usage": "runtime.models",
    "all_of": "runtime.edges",
    "any_of": "runtime.edges",
    "create_checkpoint_storage": "runtime.workflow_file",
    "default_detectors": "core.drift_detectors",
    "effect": "checkpoint.effects",
    "get_checkpoint_store": "storage.registry",
    "interrupt": "checkpoint.questions",
    "key_equals": "runtime.edges",
    "key_exists": "runtime.edges",
    "look_back": "runtime.drift_history",
    "migrations": "core.migrations",
    "not_": "runtime.edges",
    "open_model": "runtime.models",
    "open_storage": "storage.registry",
    "pending": "checkpoint.pending",
    "plan_prune": "core.retention",
    "process_chain": "runtime.nodes",
    "process_conditional": "runtime.nodes",
    "process_parallel": "runtime.nodes",
    "register_checkpoint_store": "storage.registry",
    "register_observer": "runtime.observers",
    "register_provider": "runtime.models",
    "register_type": "core.codec",
    "resolve": "checkpoint.pending",
    "run": "checkpoint.run",
    "tool": "runtime.tools",
}
_MODULES = {
    "errors": "errors",
    "resilient_io": "storage.resilient_io",
}

__all__ = [
    "AgentResult",
    "AgentState",
    "Approval",
    "AutonomousConfig",
    "BaseAutonomousAgent",
    "BreakerRules",
    "ChainNode",
    "CheckpointConfig",
    "CheckpointManager",
    "CheckpointMetadata",
    "ConditionalNode",
    "DriftReport",
    "DriftWatch",
    "Event",
    "FilesystemStorage",
    "Finding",
    "Fleet",
    "FleetResult",
    "GraphConfig",
    "HoldfastError",
    "HookContext",
    "HookEvent",
    "HookManager",
    "HookPriority",
    "HookResult",
    "ImportLimits",
    "InputField",
    "InterruptReason",
    "LoggingHook",
    "MemoryStorage",
    "Message",
    "Metrics",
    "MetricsHook",
    "Model",
    "Observation",
    "Observer",
    "OutputField",
    "ParallelNode",
    "RecordQuery",
    "RedactionHook",
    "RepairReport",
    "Reply",
    "ResilientCheckpointManager",
    "ResilientStorage",
    "Retry",
    "Rules",
    "Run",
    "RunQuery",
    "SQLiteStorage",
    "Signature",
    "State",
    "StateGraph",
    "StateManager",
    "StateSnapshot",
    "Storage",
    "StorageEvent",
    "ToolCall",
    "ToolSpec",
    "TracingHook",
    "Usage",
    "all_of",
    "any_of",
    "create_checkpoint_storage",
    "default_detectors",
    "effect",
    "errors",
    "get_checkpoint_store",
    "interrupt",
    "key_equals",
    "key_exists",
    "look_back",
    "migrations",
    "not_",
    "open_model",
    "open_storage",
    "pending",
    "plan_prune",
    "process_chain",
    "process_conditional",
    "process_parallel",
    "register_checkpoint_store",
    "register_observer",
    "register_provider",
    "register_type",
    "resilient_io",
    "resolve",
    "run",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name == "State":
        import_module("holdfast.checkpoint.manager")  # what State.checkpoint() saves through
    if name in _MODULES:
        value: Any = import_module(f"holdfast.{_MODULES[name]}")
    elif name in _HOMES:
        value = getattr(import_module(f"holdfast.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
