"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those named, and print the table."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.peers import PEERS
from benchmarks.report import Line, show
from benchmarks.work import fsync_time

_NAMES = ("size", "speed", "flat", "group", "compression", "retention")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in _NAMES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(_NAMES)}", file=sys.stderr)
        return 2
    sections: list[tuple[str, float, list[Line]]] = []
    for name in names or _NAMES:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
            fsync = fsync_time(Path(directory))
            lines = list(importlib.import_module(f"benchmarks.{name}").measure(Path(directory)))
        seconds = time.perf_counter() - started
        print(f"{name}: {seconds:.0f} s", file=sys.stderr)
        sections.append((name, fsync, lines))
    show(sections, [*PEERS])
    return 0 if all(line.passed for _, _, lines in sections for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
