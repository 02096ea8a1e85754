"""Groups of runs: checkpoints of all members, restored, forked, pruned together.

The runs themselves, and what executes them, belong elsewhere.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
