"""A workflow whose every execution of a step is told to a log outside of any storage.

The log's path is in SUREHOLD_TEST_LOG. A line is one write and is synced before the step returns,
so a killed process leaves all that it did. SUREHOLD_TEST_PAUSE is what a step takes, in seconds.
"""

from __future__ import annotations

import json
import os
import time
from functools import reduce
from typing import Any

from surehold import sleep, step, wait_for, workflow
from surehold.engine.runs.positions import call_context

STEPS = 10


def _tell(event: str, number: int) -> None:
    path = os.environ.get("SUREHOLD_TEST_LOG")
    context: Any = call_context()
    if not path or context is None:
        return
    run = context.run
    line = [event, run.run_id, number, run.epoch, os.getpid()]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(log, json.dumps(line).encode() + b"\n")
        os.fsync(log)
    finally:
        os.close(log)


@step(in_doubt="retry")
def mix(total: int, number: int) -> int:
    """Continue a sum that depends on every step and their order."""
    _tell("begin", number)
    time.sleep(float(os.environ.get("SUREHOLD_TEST_PAUSE", "0")))
    _tell("end", number)
    return _mixed(total, number)


def _mixed(total: int, number: int) -> int:
    return (total * 31 + number) % 1_000_003


def expected(seed: int) -> int:
    """The value that `count` comes to."""
    return reduce(_mixed, range(1, STEPS + 1), seed)


@workflow
def count(seed: int) -> int:
    """Ten steps."""
    total = seed
    for number in range(1, STEPS + 1):
        total = mix(total, number)
    return total


@workflow
def rest(seconds: float) -> int:
    """A step, a wait in which no process is held, and a step."""
    before = mix(1, 1)
    sleep(seconds)
    return mix(before, 2)


@workflow
def ask(seed: int) -> int:
    """A step, a wait for the event "go", and a step."""
    before = mix(seed, 1)
    return mix(before + int(wait_for("go")), 2)


@workflow
def fail(text: str) -> int:
    """A step, and a failure."""
    mix(1, 1)
    raise ValueError(text)


@workflow
def linger(steps: int) -> int:
    """Many short steps, to be stopped between two of them."""
    total = 0
    for number in range(1, steps + 1):
        total = mix(total, number)
        time.sleep(0.05)
    return total
