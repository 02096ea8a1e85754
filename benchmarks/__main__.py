"""Run all benchmarks, or those named: `python -m benchmarks [NAME ...]`.

A section that misses a limit is measured again, because a busy machine only makes figures worse:
the best of at most three tries counts. The exit status is 1 if a figure still misses its limit.
"""

from __future__ import annotations

import importlib
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import apsw

from benchmarks.peers import PEERS, versions
from benchmarks.report import Line, Section, best_of, show
from benchmarks.workload import fsync_time

_NAMES = (
    *("size", "speed", "scale", "group_commit", "compression", "retention", "graph", "agent"),
    *("functions", "recorder", "temporal", "workers", "beside_dbos", "beside_commit"),
    *("cli", "overview", "growth", "langgraph", "loads", "inspect", "walks", "web", "servers"),
)
_TRIES = 3


def main(names: list[str]) -> int:
    """Measure, print, and return the exit status."""
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(_NAMES)}", file=sys.stderr)
        return 2
    sections = [_run(name) for name in names or _NAMES]
    here = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}."
    show(sections, [*PEERS], f"{here} {versions()}")
    return 0 if all(line.passed for section in sections for line in section.lines) else 1


def _run(name: str) -> Section:
    started = time.perf_counter()
    tries: list[list[Line]] = []
    syncs: list[float] = []
    while len(tries) < _TRIES and not (tries and all(line.passed for line in best_of(tries))):
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="surehold-bench-") as made:
            directory = Path(made)
            syncs.append(fsync_time(directory))
            tries.append(list(importlib.import_module(f"benchmarks.{name}").measure(directory)))
            syncs.append(fsync_time(directory))
    return Section(name, median(syncs), time.perf_counter() - started, best_of(tries))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
