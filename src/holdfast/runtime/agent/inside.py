"""How an agent's run knows what happened inside it: its children's runs, its tools' failures."""

from __future__ import annotations

__all__ = ["TOOL_FAILED", "TOOL_FAILED_NAME", "run_inside"]

TOOL_FAILED_NAME = "holdfast.ToolFailed"
TOOL_FAILED = b'{"$t":"%b"' % TOOL_FAILED_NAME.encode()
"""The text of a tool's failure, which is an outcome as any other, begins with this."""


def run_inside(run_id: str, key: str) -> str:
    """The run of the agent that is called inside a run, by the idempotency key of the call."""
    return f"{run_id}.{key[:12]}"
