"""Context variables that have a value during a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give *variable* a value for the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
