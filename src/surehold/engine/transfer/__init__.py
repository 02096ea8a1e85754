"""Runs on the move: export, import, copy, and the JSON forms of states.

Nothing here decides what to keep.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
