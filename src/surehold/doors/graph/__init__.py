"""The state graph: nodes, edges, the loop that runs them.

Choosing where to resume belongs to `doors.resume`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
