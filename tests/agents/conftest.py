"""Managers on each medium, as the engine's own tests have them."""

from __future__ import annotations

from tests.engine.conftest import manager, open_manager

__all__ = ["manager", "open_manager"]
