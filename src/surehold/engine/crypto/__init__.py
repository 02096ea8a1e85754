"""Encryption of record bodies: keys, sealing, rotation.

Nothing here knows what a body means.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
