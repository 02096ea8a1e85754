"""The workflow of the trial: ten paid steps, each told to a file outside of any storage.

A line is one write to a file that is only appended to, so that the order of lines is the order in
which things happened on this machine. The body tells when it calls a step, the step when it begins
and ends.
"""

from __future__ import annotations

import json
import os
import random
import time
from contextvars import ContextVar
from functools import reduce
from typing import Any
from uuid import uuid4

from surehold import step, workflow
from surehold.engine.leases import RunLease
from surehold.engine.runs.positions import call_context

__all__ = ["FORGETFUL", "LEASE", "ORACLE", "STEPS", "expected", "paid"]

STEPS = 10
ORACLE = "SUREHOLD_CHAOS_ORACLE"
LEASE = "SUREHOLD_CHAOS_LEASE"
FORGETFUL = "SUREHOLD_CHAOS_FORGETFUL"
"""The variable that takes away the look at the clock before a step begins."""
_LONG = 0.1
"""The share of pauses that are longer than a lease."""

_attempt: ContextVar[str] = ContextVar("attempt", default="")


def _tell(event: str, run: int, number: int, epoch: int = 0) -> None:
    line = [event, run, number, epoch, _attempt.get(), os.getpid(), time.monotonic()]
    file = os.open(os.environ[ORACLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


@step
def pay(run: int, number: int, total: int) -> int:
    """A call that costs money."""
    context: Any = call_context()
    _tell("begin", run, number, context.run.epoch)
    time.sleep(random.uniform(0.02, 0.15))
    _tell("end", run, number, context.run.epoch)
    return _mixed(total, number)


def _mixed(total: int, number: int) -> int:
    return (total * 31 + number) % 1_000_003


def expected(run: int) -> int:
    """The value that a run comes to."""
    return reduce(_mixed, range(1, STEPS + 1), run)


@workflow
def paid(run: int) -> int:
    """Ten steps with pauses between them, in which no step is in flight."""
    _attempt.set(uuid4().hex)
    lease = float(os.environ[LEASE])
    total = run
    for number in range(1, STEPS + 1):
        pick = random.Random(f"{run} {number}")
        time.sleep(1.3 * lease if pick.random() < _LONG else pick.uniform(0, 0.1))
        _tell("call", run, number)
        total = pay(run, number, total)
    return total


if os.environ.get(FORGETFUL):
    RunLease.ensure = lambda self: None  # type: ignore[method-assign]
