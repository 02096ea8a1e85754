"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those named, and print the table.

The exit status is 1 if a figure misses its limit.
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
from benchmarks.report import Section, show
from benchmarks.work import fsync_time

_NAMES = (
    *("size", "speed", "flat", "group", "compression", "retention", "graph", "agent", "cli"),
    "langgraph",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(_NAMES)}", file=sys.stderr)
        return 2
    sections = [_run(name) for name in names or _NAMES]
    here = f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}."
    show(sections, [*PEERS], f"{here} {versions()}")
    return 0 if all(line.passed for section in sections for line in section.lines) else 1


def _run(name: str) -> Section:
    print(f"{name} ...", file=sys.stderr, flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as made:
        directory = Path(made)
        syncs = [fsync_time(directory)]
        lines = list(importlib.import_module(f"benchmarks.{name}").measure(directory))
        syncs.append(fsync_time(directory))
    return Section(name, median(syncs), time.perf_counter() - started, lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
