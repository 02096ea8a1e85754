"""The journal of one run: what an append contains, and how a state is read back.

Storage calls belong to `engine.commit`, policy to `core.policy`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
