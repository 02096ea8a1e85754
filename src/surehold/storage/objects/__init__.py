"""Runs in an object store (S3, Google Cloud, Azure Blob), shared by many machines.

Every change of a run is one object, created at the next position of the run's log and only if
nothing is there: of two writers one wins, and a stale one collides. Needs the extra `objects`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
