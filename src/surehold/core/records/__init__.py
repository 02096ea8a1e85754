"""Records as values: headers, ids, digests, frames, leases.

Nothing here reads or writes a medium.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
