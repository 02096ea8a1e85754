"""The first door: your own loop, in a ``with surehold.run(...)`` block."""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
