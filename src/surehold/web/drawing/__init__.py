"""Drawings of the page: the places of nodes, bars and lanes.

What they show is read in `views`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
