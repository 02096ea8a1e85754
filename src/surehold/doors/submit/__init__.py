"""Runs begun here and executed elsewhere: submissions, and handles to them.

Holds what is written when a run is queued. Executing queued runs belongs to `surehold.executors`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
