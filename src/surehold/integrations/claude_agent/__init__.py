"""Claude Agent SDK: a store of sessions in Surehold's journals."""

from __future__ import annotations

from surehold.lazy import extra

with extra("claude-agent"):
    from surehold.integrations.claude_agent.session_store import (
        SureholdSessionStore as SureholdSessionStore,
    )
