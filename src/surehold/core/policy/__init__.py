"""Pure rules: retention, triggers, redaction, endings, drift.

A policy is a function from facts to a plan; carrying it out belongs to other layers.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
