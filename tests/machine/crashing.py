"""The application of the state machine as a process of its own, killed in the middle of a save."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from tests.crash.media import open_medium

from surehold import CheckpointManager, State
from surehold.errors import ConflictError
from surehold.storage.base import Batch

__all__ = ["save_and_die"]


def save_and_die(
    tell: Callable[..., None],
    medium: str,
    directory: str,
    key: str | None,
    run_id: str,
    value: str,
    now: str,
    stored: bool,
) -> None:
    """Go on with a run and save, and be killed when that is just *stored*, or just not."""
    storage = open_medium(medium, Path(directory))
    manager = CheckpointManager(storage, encryption_key=key)
    manager.face.journal._clock = lambda: datetime.fromisoformat(now)
    state = manager.resume_from_latest(run_id)
    assert isinstance(state, State)
    append = storage.append

    def killing(batches: Sequence[Batch]) -> list[ConflictError | None]:
        if stored:
            append(batches)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("alive")

    storage.append = killing  # type: ignore[method-assign]
    manager.save_checkpoint(state.set("crashed", value).at(step=state.step + 1))
