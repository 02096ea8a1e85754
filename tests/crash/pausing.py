"""A process that holds a run and one that takes it over, told apart by what each may append."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.builders.held import save_under
from tests.crash.media import manager_on, open_medium

from surehold import CheckpointManager, State
from surehold.engine.leases import RunLease
from surehold.errors import ConflictError, LeaseHeldError, StorageUnavailableError

__all__ = ["RUN", "hold", "take_over"]

Tell = Callable[..., None]

RUN = "held"


def hold(
    tell: Tell, medium: str, directory: str, seconds: float, pause: float, fenced: bool
) -> None:
    """Take the run and save to it until that is refused.

    Unless it is *fenced*, its saves do not say under which lease they are made.
    """
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        with RunLease(manager.face.journal, RUN, seconds=seconds) as held:
            state = State.new({"log": []}, run_id=RUN)
            try:
                while True:
                    state = state.append("log", "first").at(step=state.step + 1)
                    tell("save", state.step)
                    if fenced:
                        save_under(held, manager, state)
                    else:
                        manager.save_checkpoint(state)
                    tell("saved", state.step, held.epoch)
                    time.sleep(pause)
            except ConflictError as error:
                tell("refused", type(error).__name__)


def take_over(tell: Tell, medium: str, directory: str, seconds: float) -> None:
    """Wait until the run can be had, take it, and save to it once the word is given."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        held = _taken(manager, seconds)
        tell("took", held.epoch)
        while not Path(directory, "go").exists():
            time.sleep(0.001)
        state = manager.resume_from_latest(RUN)
        assert isinstance(state, State)
        tell("resumed", state.step)
        save_under(held, manager, state.append("log", "second").at(step=state.step + 1))
        held.release()
    tell("done")


def _taken(manager: CheckpointManager, seconds: float) -> RunLease:
    while True:
        try:
            return RunLease(manager.face.journal, RUN, seconds=seconds).acquire()
        except (LeaseHeldError, StorageUnavailableError):
            # The holder may have been stopped inside a commit, with the medium's lock in its hand.
            time.sleep(0.003)
