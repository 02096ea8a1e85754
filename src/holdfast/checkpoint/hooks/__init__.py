"""Hooks: user code called around saves, loads and deletions.

Holds the events, the dispatch and the hooks that ship with Holdfast.
"""

from __future__ import annotations

from holdfast.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
