"""Holdfast: agents and workflows that can be killed at any moment and go on.

>>> import holdfast
>>> with holdfast.run("nightly", storage="memory://") as run:
...     for page in ["a", "b"][run.state.get("done", 0):]:
...         run.checkpoint(done=run.state.get("done", 0) + 1)
>>> run.status
'completed'

Names are loaded when they are first used, so that importing Holdfast is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast.checkpoint.hooks import HookContext as HookContext
    from holdfast.checkpoint.hooks import HookEvent as HookEvent
    from holdfast.checkpoint.hooks import HookManager as HookManager
    from holdfast.checkpoint.hooks import HookPriority as HookPriority
    from holdfast.checkpoint.hooks import HookResult as HookResult
    from holdfast.checkpoint.manager import CheckpointManager as CheckpointManager
    from holdfast.checkpoint.manager import StateManager as StateManager
    from holdfast.checkpoint.run import Run as Run
    from holdfast.checkpoint.run import run as run
    from holdfast.checkpoint.views import CheckpointMetadata as CheckpointMetadata
    from holdfast.core.agent_state import AgentState as AgentState
    from holdfast.core.agent_state import StateSnapshot as StateSnapshot
    from holdfast.core.codec import register_type as register_type
    from holdfast.core.retention import plan_prune as plan_prune
    from holdfast.core.rules import Rules as Rules
    from holdfast.core.state import State as State
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.storage.base import Storage as Storage
    from holdfast.storage.filesystem import FilesystemStorage as FilesystemStorage
    from holdfast.storage.memory import MemoryStorage as MemoryStorage
    from holdfast.storage.registry import get_checkpoint_store as get_checkpoint_store
    from holdfast.storage.registry import open_storage as open_storage
    from holdfast.storage.registry import register_checkpoint_store as register_checkpoint_store
    from holdfast.storage.sqlite import SQLiteStorage as SQLiteStorage

__version__ = "0.1.0"

_HOMES = {
    "AgentState": "core.agent_state",
    "CheckpointManager": "checkpoint.manager",
    "CheckpointMetadata": "checkpoint.views",
    "FilesystemStorage": "storage.filesystem",
    "HoldfastError": "errors",
    "HookContext": "checkpoint.hooks",
    "HookEvent": "checkpoint.hooks",
    "HookManager": "checkpoint.hooks",
    "HookPriority": "checkpoint.hooks",
    "HookResult": "checkpoint.hooks",
    "MemoryStorage": "storage.memory",
    "Rules": "core.rules",
    "Run": "checkpoint.run",
    "SQLiteStorage": "storage.sqlite",
    "State": "core.state",
    "StateManager": "checkpoint.manager",
    "StateSnapshot": "core.agent_state",
    "Storage": "storage.base",
    "errors": "",
    "get_checkpoint_store": "storage.registry",
    "open_storage": "storage.registry",
    "plan_prune": "core.retention",
    "register_checkpoint_store": "storage.registry",
    "register_type": "core.codec",
    "run": "checkpoint.run",
}

__all__ = [  # noqa: PLE0604
    "AgentState",
    "CheckpointManager",
    "CheckpointMetadata",
    "FilesystemStorage",
    "HoldfastError",
    "HookContext",
    "HookEvent",
    "HookManager",
    "HookPriority",
    "HookResult",
    "MemoryStorage",
    "Rules",
    "Run",
    "SQLiteStorage",
    "State",
    "StateManager",
    "StateSnapshot",
    "Storage",
    "errors",
    "get_checkpoint_store",
    "open_storage",
    "plan_prune",
    "register_checkpoint_store",
    "register_type",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    home = _HOMES[name]
    if name == "State":
        import_module("holdfast.checkpoint.manager")  # what State.checkpoint() saves through
    if not home:
        value: Any = import_module(f"holdfast.{name}")
    else:
        value = getattr(import_module(f"holdfast.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
