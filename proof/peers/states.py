"""What every library is given to save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MOMENT", "Tell", "state", "text_of"]

Tell = Callable[..., None]

MOMENT = 0.3
"""Seconds that a step takes which acts on the world."""


def text_of(number: int) -> str:
    """What stands in the state of this number."""
    return f"state {number} ".ljust(300, "abcdefghij"[number % 10])


def state(number: int) -> dict[str, Any]:
    return {"number": number, "text": text_of(number)}
