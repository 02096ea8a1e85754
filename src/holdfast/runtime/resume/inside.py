"""Records inside a run that a rewind needs: agents' runs, failures of tools."""

from __future__ import annotations

TOOL_FAILED_NAME = "holdfast.ToolFailed"
TOOL_FAILED = b'{"$t":"%b"' % TOOL_FAILED_NAME.encode()
"""Beginning of the stored text of a tool's failure."""


def run_inside(run_id: str, key: str) -> str:
    """The run of an agent called inside a run, by the call's idempotency key."""
    return f"{run_id}.{key[:12]}"
