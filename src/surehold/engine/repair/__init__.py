"""Repair of damaged runs: plan, apply, report.

Reading bytes off a damaged medium belongs to that medium's own room.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
