"""Agents: the cycle of plan, model call, tools and checkpoint.

Models and tools have rooms of their own.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
