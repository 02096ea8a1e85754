"""Calls around a fork, on systems that have forks."""

from __future__ import annotations

import os
from collections.abc import Callable


def register_at_fork(**calls: Callable[[], None]) -> None:
    """Call functions around every fork, as `os.register_at_fork` does."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)
