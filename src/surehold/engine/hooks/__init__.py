"""Hooks: user code called around saves, loads and deletions.

Holds the events, the dispatch and the hooks that ship with Surehold.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
