"""The two managers, blocking and awaited, and the thread that commits for them.

Every other layer enters the engine here. What an operation does belongs to
`engine.commit`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
