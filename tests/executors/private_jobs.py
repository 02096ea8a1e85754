"""Code that names hooks and a key for its runs, found by entry point."""

from __future__ import annotations

from typing import Any

from surehold import (
    Agent,
    CheckpointManager,
    Reply,
    StateGraph,
    ToolCall,
    schedule,
    step,
    tool,
    workflow,
)
from surehold.compat import StateManager
from surehold.engine.hooks import redacting_hooks
from surehold.testing.scripted import ScriptedModel

SECRET = "hunter-the-second"
KEY = "7" * 64


@step(in_doubt="ask")
def log_in() -> dict[str, str]:
    return {"password": SECRET}


@tool
def log_in_tool() -> dict[str, str]:
    """Log in."""
    return {"password": SECRET}


redacting = CheckpointManager("memory://", hook_manager=redacting_hooks())
encrypting = CheckpointManager("memory://", encryption_key=KEY)


@workflow(storage=redacting)
def redacted() -> bool:
    return log_in() is not None


@workflow
def plain() -> bool:
    return log_in() is not None


@workflow(storage=encrypting)
def encrypted(note: str) -> str:
    return str(log_in()["password"]) + note


def _node(state: Any) -> dict[str, Any]:
    return {"password": SECRET}


graph = StateGraph("private", manager=StateManager("memory://", hook_manager=redacting_hooks()))
graph.add_node("log in", _node)
graph.set_entry_point("log in")
graph.set_exit_point("log in")

agent = Agent(
    "private",
    model=ScriptedModel([Reply("", (ToolCall("1", "log_in_tool", {}),)), "done"]),
    tools=[log_in_tool],
    storage="memory://",
    hook_manager=redacting_hooks(),
)

each_minute = schedule("* * * * *", encrypted, SECRET, name="private")
