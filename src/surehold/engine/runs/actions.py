"""Notes about people: who did what to a run."""

from __future__ import annotations

from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager


def note_action(
    manager: CheckpointManager, run_id: str, did: str, by: str, *, step: int = 0
) -> None:
    """Record in the run's journal what somebody did to it, at whichever door."""
    note = Note(kind="action", content={}, step=step, metadata={"did": did, "by": by})
    manager.append_notes(run_id, (note,))
