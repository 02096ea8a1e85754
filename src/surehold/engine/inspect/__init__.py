"""Read-only views of a journal: changes, timeline, overview, statistics, metrics.

Nothing here writes, except `migrate`, which rewrites states to a newer schema.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
