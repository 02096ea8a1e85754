"""A worker's pace on queued workflows: a process of `benchmarks.beside_commit`.

It knows no name of the package but what both commits have, and gets the package's own name.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

STEPS = 10
_CALLS = (
    *("append", "read", "headers", "find", "runs", "run", "delete", "head_and_newest"),
    *("take_run", "take_lease", "renew_lease", "release_lease", "lease_of", "page"),
    *("claim", "settle", "promote"),
)
"""What is delayed: the methods of a storage that a worker and its runs call."""

package: Any = importlib.import_module(os.environ["BENCH_PACKAGE"])


@package.step(in_doubt="retry")  # type: ignore[untyped-decorator]
def nothing(number: int) -> dict[str, bool]:
    return {"ok": True}


@package.workflow  # type: ignore[untyped-decorator]
def no_op() -> int:
    for number in range(STEPS):
        nothing(number)
    return STEPS


def main() -> None:
    """Queue the runs, let one worker execute them, and print its steps per second."""
    runs, threads = int(os.environ["BENCH_RUNS"]), int(os.environ["BENCH_CONCURRENCY"])
    delay = float(os.environ["BENCH_DELAY"])
    registry = importlib.import_module(f"{package.__name__}.storage.registry")
    executors = importlib.import_module(f"{package.__name__}.executors")
    storage = registry.open_storage(os.environ["BENCH_URL"])
    for number in range(runs):
        no_op.start(run_id=f"run{number}", storage=storage)
    if delay:
        for name in _CALLS:
            if hasattr(storage, name):
                setattr(storage, name, _delayed(getattr(storage, name), delay))
    worker = executors.Worker(storage, executors.served_by([__name__]), concurrency=threads)
    began = time.perf_counter()
    worker.run(until_idle=True)
    seconds = time.perf_counter() - began
    ended = [info.status for info in storage.runs(_all_runs())]
    assert ended.count("completed") == runs, f"{ended.count('completed')} of {runs} completed"
    print(json.dumps({"rate": runs * STEPS / seconds}))


def _all_runs() -> Any:
    return importlib.import_module(f"{package.__name__}.storage.base").RunQuery()


def _delayed(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return delayed
