"""The contract of a storage as a test class: one test per promise.

Needs pytest; `surehold.testing` says so where it is missing.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
