"""Resumes runs that are asked for on the page, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from threading import Lock

from holdfast.errors import ConflictError

__all__ = ["Resuming"]


class Resuming:
    """Starts ``holdfast resume``. User code never runs in the page's process."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = Lock()

    @property
    def possible(self) -> bool:
        """True if another process can open the storage."""
        return bool(self._address) and not self._address.startswith("memory")

    def start(self, run_id: str, entry: str) -> None:
        """Start the process; its outcome is in the journal, what it prints goes to our stderr.

        The address is handed over in the environment: it may hold a password.
        """
        with self._lock:
            alive = {k: p for k, p in self._started.items() if p.poll() is None}
            self._started = alive
            if run_id in alive:
                raise ConflictError(
                    f"run {run_id!r} is being resumed by process {alive[run_id].pid}",
                    run_id=run_id,
                )
            words = ["resume", "--yes", "--entry", entry, "--", run_id]
            alive[run_id] = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                env={**os.environ, "HOLDFAST_STORAGE": self._address},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                start_new_session=True,
            )
