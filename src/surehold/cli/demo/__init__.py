"""The demonstration: a job that is killed and resumed, and the runs it leaves."""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
