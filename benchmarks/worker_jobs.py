"""Workflows that the benchmark of workers finds by entry point."""

from __future__ import annotations

import os
import time

import surehold

STEPS = 10
_TOLD = os.environ.get("BENCH_TOLD")
_FILE = os.open(_TOLD, os.O_WRONLY | os.O_APPEND) if _TOLD else None


def tell() -> None:
    """Tell whoever counts the steps, by a byte in a file."""
    if _FILE is not None:
        os.write(_FILE, b".")


@surehold.step(in_doubt="retry")
def nothing(number: int) -> dict[str, bool]:
    tell()
    return {"ok": True}


@surehold.workflow
def no_op() -> int:
    for number in range(STEPS):
        nothing(number)
    return STEPS


@surehold.workflow
def one_step() -> dict[str, bool]:
    return nothing(0)


@surehold.workflow
def sleeper(due: float) -> float:
    """Seconds between the due time and the start."""
    return time.time() - due


@surehold.workflow
def paused(kind: str) -> str:
    """Wait for a day, or for an event."""
    nothing(0)
    if kind == "time":
        surehold.sleep(86_400)
    else:
        surehold.wait_for("go")
    return kind
