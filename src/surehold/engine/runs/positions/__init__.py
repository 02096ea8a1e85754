"""Positions of calls: in a node of a graph, in a loop, in a durable function.

A position gives a recorded call the id by which a replay finds its outcome.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
