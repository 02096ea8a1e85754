"""A run that this process holds: lease, position, effects, questions, stop."""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
