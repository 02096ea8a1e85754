"""Messages to a run: kept in its journal until the run takes them, in order.

Holds the mailbox of a run, sending to it, and the values that it publishes. Questions and their
answers belong to `runs` itself.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
