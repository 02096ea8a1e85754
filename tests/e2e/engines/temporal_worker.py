"""A process that serves runs to a Temporal server: address of both, seconds of a lease, code."""

from __future__ import annotations

import signal
import sys

from surehold.executors import TemporalWorker

if __name__ == "__main__":
    storage, server, seconds, *serves = sys.argv[1:]
    worker = TemporalWorker(
        storage, *serves, address=server, concurrency=4, lease_seconds=float(seconds)
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
