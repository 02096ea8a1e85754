"""Actions of the page: each states its effect, is confirmed once, notes its user.

What only reads belongs to `web.views`; what an action does belongs to `checkpoint` and `runtime`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
