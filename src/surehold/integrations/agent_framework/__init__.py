"""Checkpoint storage for Microsoft Agent Framework."""

from __future__ import annotations

from surehold.integrations.agent_framework.storage import (
    SureholdCheckpointStorage as SureholdCheckpointStorage,
)
