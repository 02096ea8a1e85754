"""Views of the screens, read from journals: no requests, no templates.

A view is a value that a template can render. What changes a journal belongs to `web.actions`.
"""

from __future__ import annotations

from surehold.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
