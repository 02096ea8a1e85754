"""Operations of the managers, written once as generators for both drivers.

An operation decides and asks for storage calls; it never performs one.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
