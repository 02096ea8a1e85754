"""Durability for Pydantic AI: agents whose model and tool calls a run records."""

from __future__ import annotations

from surehold.lazy import extra

with extra("pydantic-ai"):
    from surehold.integrations.calls import CallOptions as CallOptions
    from surehold.integrations.calls import idempotency_key as idempotency_key
    from surehold.integrations.pydantic_ai.durability import (
        SureholdDurability as SureholdDurability,
    )
