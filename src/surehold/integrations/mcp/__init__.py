"""MCP: a store of events for resumable streams."""

from __future__ import annotations

from surehold.lazy import extra

with extra("mcp"):
    from surehold.integrations.mcp.event_store import SureholdEventStore as SureholdEventStore
