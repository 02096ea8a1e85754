"""File primitives: atomic replace, locks, reads and writes that retry.

Nothing here knows of records.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
