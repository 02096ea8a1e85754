"""The protocol of executors."""

from __future__ import annotations

from typing import Protocol


class Executor(Protocol):
    """Decides where and when runs are driven; never what happened.

    A submission may be lost or doubled: the storage has the run, a sweep finds it, and a second
    `drive` of it is refused its lease.
    """

    def submit(self, run_id: str) -> None:
        """Have the run driven soon; returns at once."""

    def cancel(self, run_id: str) -> None:
        """Stop driving the run at its next step, if this executor does; it can be resumed."""

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, stop runs at their next step, wait up to *timeout* seconds."""
