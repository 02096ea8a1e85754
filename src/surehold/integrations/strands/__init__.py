"""Strands: a storage, and a session manager on it, in Surehold's journals."""

from __future__ import annotations

from surehold.lazy import extra

with extra("strands"):
    from surehold.integrations.strands.session import (
        SureholdSessionManager as SureholdSessionManager,
    )
    from surehold.integrations.strands.storage import SureholdStorage as SureholdStorage
