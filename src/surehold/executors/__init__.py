"""Executors: where and when runs execute; the storage alone holds the truth.

Holds `drive`, the protocol, and the executors. What a run does belongs to the
doors and agents.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
