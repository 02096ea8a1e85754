"""Workflows that the benchmark of workers finds by entry point."""

from __future__ import annotations

import time

import holdfast

STEPS = 10


@holdfast.step(in_doubt="retry")
def nothing(number: int) -> dict[str, bool]:
    return {"ok": True}


@holdfast.workflow
def no_op() -> int:
    for number in range(STEPS):
        nothing(number)
    return STEPS


@holdfast.workflow
def sleeper(due: float) -> float:
    """Seconds between the due time and the start."""
    return time.time() - due
