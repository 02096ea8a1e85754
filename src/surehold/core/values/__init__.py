"""Values and their text: codec, scalars, frozen copies, diff, patch.

Nothing here knows of runs or records.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
