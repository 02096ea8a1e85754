"""Saves in the name of a held run, as `OpenRun` makes them."""

from __future__ import annotations

from surehold import CheckpointManager, State
from surehold.engine.journal import draft_of
from surehold.engine.leases import RunLease

__all__ = ["save_under"]


def save_under(held: RunLease, manager: CheckpointManager, state: State) -> str:
    """Save *state* under the lease *held*."""
    return manager.save_draft(draft_of(state), epoch=held.epoch)
