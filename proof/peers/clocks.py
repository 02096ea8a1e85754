"""An adapter's function in a process whose clock is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module

import time_machine

from proof.peers.states import Tell

__all__ = ["behind"]


def behind(tell: Tell, module: str, function: str, directory: str) -> None:
    """The function, an hour ago by the clock on the wall."""
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=1), tick=True):
        getattr(import_module(module), function)(tell, directory)
