"""Shared by every command: arguments, terminal, formats, documents, exit codes.

Nothing here knows a particular command.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
