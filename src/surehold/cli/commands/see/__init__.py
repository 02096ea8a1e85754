"""Commands that read: runs, log, show, cat, diff, blame, status, stats, watch, ..."""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
