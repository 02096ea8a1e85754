"""A process that takes checkpoints of a group and is killed at one of its appends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.media import manager_on, open_medium

import surehold
from surehold import State

__all__ = ["MEMBERS", "take_and_die"]

MEMBERS = ("a", "b", "c")


def take_and_die(
    tell: Callable[..., None], medium: str, directory: str, number: int, stored: bool
) -> None:
    """Save all members with the group again and again, to be killed at append *number*.

    The append is *stored* or not when that happens.
    """
    storage = open_medium(medium, Path(directory))
    manager = manager_on(storage, medium)
    crew = surehold.group("crew", MEMBERS, storage=manager)
    left = number

    def dying(call: Any) -> Any:
        def append(batches: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not stored:
                os.kill(os.getpid(), signal.SIGKILL)
            results = call(batches)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return results

        return append

    for name in ("append", "append_all"):
        if hasattr(storage, name):
            setattr(storage, name, dying(getattr(storage, name)))
    while True:
        states = []
        for run_id in MEMBERS:
            state = manager.resume_from_latest(run_id) or State.new({"log": []}, run_id=run_id)
            states.append(state.append("log", state.step + 1).at(step=state.step + 1))
        crew.checkpoint(states)
