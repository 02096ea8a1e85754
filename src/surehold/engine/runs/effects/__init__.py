"""Effects: calls to the outside world whose outcomes the journal keeps.

Holds the attempts of a call, its time limits, its outcome and its recorded error. The notes of an
execution, and the lookup of what runs wait for, belong to `engine.runs`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
