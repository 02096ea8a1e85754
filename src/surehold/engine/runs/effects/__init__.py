"""Effects and questions: outside calls whose outcomes the journal keeps.

Holds the ledger of one execution and the lookup of what runs wait for. Which node calls an effect,
and when, belongs to `runtime`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
