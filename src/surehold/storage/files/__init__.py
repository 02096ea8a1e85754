"""Runs as plain files: a line per record, a directory per run."""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
