"""Retention: which checkpoints stay, applied on save or in bulk.

The rules themselves are pure and belong to `core.policy`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
