"""Processes that save to the same storage at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.crash.media import manager_on, open_medium

from surehold import State
from surehold.errors import ConflictError

__all__ = ["begin_run", "save_over", "save_own_runs", "save_to_one_run"]

Tell = Callable[..., None]


def save_to_one_run(tell: Tell, medium: str, directory: str, me: int, attempts: int) -> None:
    """Read the run, add a line to it and save, so many times; losing is no reason to try again."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        for attempt in range(attempts):
            state = manager.resume_from_latest("shared")
            state = state.append("log", [me, attempt]).at(step=state.step + 1)
            try:
                tell("won", me, attempt, state.step, manager.save_checkpoint(state))
            except ConflictError:
                tell("lost", me, attempt)


def save_own_runs(tell: Tell, medium: str, directory: str, me: int, steps: int) -> None:
    """Save to runs that nobody else saves to."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        states = [State.new({"log": []}, run_id=f"run-{me}-{n}", name="many") for n in range(3)]
        for step in range(1, steps + 1):
            states = [state.append("log", step).at(step=step) for state in states]
            for state in states:
                tell("saved", state.run_id, step, manager.save_checkpoint(state))


def begin_run(tell: Tell, medium: str, directory: str, me: int) -> None:
    """Begin a run that others begin as well."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        try:
            tell("won", me, manager.save_checkpoint(State.new({"me": me}, run_id="new")))
        except ConflictError:
            tell("lost", me)


def save_over(tell: Tell, medium: str, directory: str, me: int, attempts: int) -> None:
    """What a storage does that never looks whether someone else has saved, for the control."""
    path, temporary = Path(directory, "log"), Path(directory, f"log.{me}")
    for attempt in range(attempts):
        log = json.loads(path.read_text())
        temporary.write_text(json.dumps([*log, [me, attempt]]))
        os.replace(temporary, path)
        tell("won", me, attempt)
